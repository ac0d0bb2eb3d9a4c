// Data of figures, tables and prompts: unpacked when first needed; downloads.

const unpacked = new Map();

/** The JSON of a compressed data element. */
function data(id) {
  if (!unpacked.has(id)) unpacked.set(id, unpack(BY_ID(id).textContent));
  return unpacked.get(id);
}

async function unpackText(text) {
  const letters = atob(text.trim());
  const bytes = new Uint8Array(letters.length);
  for (let at = 0; at < letters.length; at += 1) bytes[at] = letters.charCodeAt(at); // many times faster than from()
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).text();
}

async function unpack(text) {
  return JSON.parse(await unpackText(text));
}

let plotly = null;

/** Plotly's script, unpacked and added once; the page's policy knows its hash. */
function withPlotly() {
  plotly ??= unpackText(BY_ID("page-plotly").textContent).then((text) => {
    BY_ID("page-plotly").remove();
    const script = document.createElement("script");
    script.textContent = text;
    document.head.append(script);
  });
  return plotly;
}

/** A cell of CSV. A text that a spreadsheet would take for a formula gets an apostrophe in front. */
function csvCell(value) {
  if (value === null || value === undefined) return "";
  if (typeof value === "number") return String(value);
  let text = String(value);
  if (Number.isNaN(Number(text)) && /^[=+\-@\t\r]./s.test(text)) text = "'" + text;
  return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}

function csv(columns, rows) {
  return [columns, ...rows].map((row) => row.map(csvCell).join(",")).join("\r\n") + "\r\n";
}

function save(blob, name) {
  const link = make("a", { href: URL.createObjectURL(blob), download: name });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}

function fileName(parts, suffix) {
  const safe = parts.filter(Boolean).map((part) => String(part).replace(/[^\w.-]+/g, "-").replace(/^[-.]+|-+$/g, ""));
  return safe.filter(Boolean).join("-").slice(0, 120) + "." + suffix;
}

function saveCsv(columns, rows, parts) {
  save(new Blob([csv(columns, rows)], { type: "text/csv;charset=utf-8" }), fileName(parts, "csv"));
}

/** The picture of a chart, as it is seen, at least 900 pixels wide. */
async function savePicture(chart, format, parts) {
  const width = Math.max(900, chart.clientWidth);
  const url = await Plotly.toImage(chart, { format, width, height: chart.clientHeight, scale: format === "png" ? 2 : 1 });
  const [head, body] = [url.slice(0, url.indexOf(",")), url.slice(url.indexOf(",") + 1)];
  const bytes = head.includes("base64")
    ? Uint8Array.from(atob(body), (c) => c.charCodeAt(0))
    : new TextEncoder().encode(decodeURIComponent(body));
  save(new Blob([bytes], { type: format === "png" ? "image/png" : "image/svg+xml" }), fileName(parts, format));
}

function toolButton(label, about, action) {
  const button = make("button", { type: "button", class: "button small", "aria-label": about, title: about }, label);
  button.addEventListener("click", async () => {
    button.disabled = true;
    try {
      await action();
    } finally {
      button.disabled = false;
    }
  });
  return button;
}

const TABLE_ROWS = 200;

/** Rows of a figure as a table; long ones are cut, and say so. */
function dataTable(columns, rows) {
  const head = make("tr", {}, ...columns.map((column) => make("th", { scope: "col" }, make("bdi", {}, String(column)))));
  const cell = (value) =>
    typeof value === "number"
      ? make("td", { class: "number", title: String(value) }, shown(value))
      : make("td", {}, make("bdi", {}, value === null ? "–" : String(value)));
  const body = rows.slice(0, TABLE_ROWS).map((row) => make("tr", {}, ...row.map(cell)));
  const table = make("table", {}, make("thead", {}, head), make("tbody", {}, ...body));
  if (rows.length <= TABLE_ROWS) return [table];
  return [make("p", { class: "note" }, `The first ${TABLE_ROWS} of ${rows.length} rows; the CSV has all.`), table];
}
