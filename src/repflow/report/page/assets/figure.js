// A figure: its menus, its downloads, drawn when it comes into view.

const figures = [];
const waiting = new Set();
let drawingNow = false;

/** Names of the menus with their values, in the order in which they first come. */
function menuValues(whens) {
  const menus = new Map();
  for (const when of whens) {
    for (const [name, value] of Object.entries(when)) {
      if (!menus.has(name)) menus.set(name, []);
      if (!menus.get(name).includes(value)) menus.get(name).push(value);
    }
  }
  return menus;
}

/** Index of the variant that has the asked value and otherwise is most like the present choice; -1 where none has. */
function nearestVariant(whens, choice, name, value) {
  let best = -1;
  let most = -1;
  whens.forEach((when, at) => {
    if (when[name] !== value) return;
    const alike = Object.entries(choice).filter(([other, own]) => other !== name && when[other] === own).length;
    if (alike > most) [best, most] = [at, alike];
  });
  return best;
}

function makeFigure(settings) {
  const root = document.querySelector(`[data-figure="${settings.id}"]`);
  const figure = {
    ...settings,
    root,
    chart: root.querySelector(".chart"),
    menus: menuValues(settings.whens),
    selects: new Map(),
    at: 0,
    useLog: settings.starts_log,
    seen: false,
    stale: true,
    opening: Boolean(root.closest(".opening")),
  };
  const grid = settings.panels > 1 ? { rows: settings.rows } : undefined;
  const rows = NARROW.matches ? settings.panels : settings.rows;
  figure.chart.style.minHeight = chartHeight(figure, { layout: { grid } }, rows) + "px"; // so that little jumps later
  addMenus(figure);
  addTools(figure);
  addKeys(figure);
  figure.chart.append(make("p", { class: "waiting" }, "Drawn when it comes into view"));
  const details = root.querySelector("details.data");
  details.addEventListener("toggle", () => details.open && fillTable(figure));
  figures.push(figure);
  return figure;
}

function words(name) {
  const plain = name.replaceAll("_", " ");
  return plain[0].toUpperCase() + plain.slice(1);
}

function select(label, values, chosen, action, attributes = {}) {
  const text = (value) => (label === "Metric" ? value.replaceAll("_", " ") : value);
  const options = values.map((value) => make("option", { value, selected: value === chosen }, text(value)));
  const menu = make("select", { ...attributes, onchange: () => action(menu.value) }, ...options);
  return [make("label", { class: "menu" }, make("span", {}, label), menu), menu];
}

/** Two or three choices side by side, as radio buttons. */
function segments(label, name, options, chosen, action) {
  const inputs = options.map(([value, text]) => {
    const input = make("input", { type: "radio", name, value, checked: value === chosen, onchange: () => action(value) });
    return make("label", {}, input, make("span", {}, text));
  });
  return make("fieldset", { class: "segments" }, make("legend", {}, label), make("div", {}, ...inputs));
}

function addMenus(figure) {
  const place = figure.root.querySelector(".menus");
  for (const [name, values] of figure.menus) {
    if (values.length < 2) continue;
    const [label, menu] = select(words(name), values, figure.whens[0][name], (value) => {
      choose(figure, name, value);
      showShared();
    });
    menu.dataset.control = name;
    figure.selects.set(name, menu);
    place.append(label);
  }
  if (figure.log) {
    const options = [["linear", "Linear"], ["log", "Log"]];
    place.append(segments("Scale", `scale-${figure.id}`, options, figure.useLog ? "log" : "linear", (value) => {
      figure.useLog = value === "log";
      refresh(figure);
    }));
  }
  if (!place.childElementCount) place.remove();
}

/** Show the variant with this value of a menu. */
function choose(figure, name, value) {
  const found = nearestVariant(figure.whens, figure.whens[figure.at], name, value);
  if (found < 0) return;
  figure.at = found;
  for (const [other, menu] of figure.selects) {
    if (other in figure.whens[found]) menu.value = figure.whens[found][other];
  }
  refresh(figure);
}

function addTools(figure) {
  const parts = () => [SETTINGS.title, figure.id, ...Object.values(figure.whens[figure.at])];
  const picture = (format) => async () => {
    await redraw(figure);
    await savePicture(figure.chart, format, parts());
  };
  figure.root.querySelector(".tools").append(
    toolButton("CSV", `Data of ${figure.title} as CSV`, async () => {
      const { columns, rows } = await variantData(figure);
      saveCsv(columns, rows, parts());
    }),
    toolButton("SVG", `${figure.title} as SVG`, picture("svg")),
    toolButton("PNG", `${figure.title} as PNG`, picture("png")),
    linkButton(figure.title, () => figureAddress(figure)),
  );
}

function variantData(figure) {
  return data(`data-${figure.id}-${figure.at}`);
}

async function fillTable(figure) {
  const { columns, rows } = await variantData(figure);
  figure.root.querySelector("details.data .scroll").replaceChildren(...dataTable(columns, rows));
}

/** Draw again, now if the figure is in view, else when it comes into view. */
function refresh(figure) {
  figure.stale = true;
  if (figure.root.querySelector("details.data").open) fillTable(figure);
  if (figure.seen) queue(figure);
}

function queue(figure) {
  waiting.add(figure);
  if (!drawingNow) working(drawWaiting);
}

async function drawWaiting() {
  drawingNow = true;
  while (waiting.size) {
    const [figure] = waiting;
    waiting.delete(figure);
    await redraw(figure);
    await new Promise((done) => setTimeout(done, 0)); // one figure a turn: the page stays usable
  }
  drawingNow = false;
}

async function redraw(figure) {
  if (!figure.stale) return;
  figure.stale = false;
  const at = figure.at;
  const variant = await variantData(figure);
  if (at !== figure.at) return; // chosen otherwise in the meantime: a newer call draws
  figure.root.querySelectorAll(".waiting").forEach((element) => element.remove());
  const picture = drawing(variant, figure, { log: figure.useLog, width: state.paper || figure.chart.clientWidth });
  await draw(figure.chart, picture);
  figure.point = null;
  const notes = [variant.note];
  if (picture.hidden) notes.push(`${picture.hidden} values at or below zero are not drawn on a logarithmic axis.`);
  showWords(figure, variant);
  const note = figure.root.querySelector(".note");
  note.textContent = visible(notes.filter(Boolean).join(" "));
  note.hidden = !note.textContent;
}

/** What the variant shows: its sentence, what it rests on, and the text for those who cannot see it. */
function showWords(figure, { reading, basis, alt }) {
  const say = (selector, text) => {
    const element = figure.root.querySelector(selector);
    element.textContent = visible(text || "");
    element.hidden = !text;
  };
  const told = figure.opening && BY_ID("page-sentence") && BY_ID("page-sentence").textContent.includes(visible(reading || ""));
  say(".reading", told ? "" : reading);
  say(".basis", basis);
  say(".alt", alt);
  figure.chart.setAttribute("aria-label", visible(`${figure.title}. ${alt}`));
}

/** Arrow keys read the values of the focused chart. */
function addKeys(figure) {
  const steps = { ArrowRight: [0, 1], ArrowLeft: [0, -1], ArrowDown: [1, 0], ArrowUp: [-1, 0] };
  figure.chart.addEventListener("keydown", (event) => {
    if (!(event.key in steps) || event.target !== figure.chart || !figure.chart.data) return;
    event.preventDefault();
    readPoint(figure, steps[event.key]);
  });
  figure.chart.addEventListener("blur", () => figure.chart.data && Plotly.Fx.unhover(figure.chart));
}

function readPoint(figure, [line, step]) {
  const lines = figure.chart.data.filter((trace) => Array.isArray(trace.x) && trace.hoverinfo !== "skip");
  if (!lines.length) return;
  const last = figure.point || { line: 0, at: step > 0 ? -1 : 1 };
  const which = (last.line + line + lines.length) % lines.length;
  const trace = lines[which];
  const grid = Array.isArray(trace.z) && Array.isArray(trace.z[0]);
  const size = grid ? trace.z.length * trace.z[0].length : trace.x.length;
  const at = Math.min(size - 1, Math.max(0, last.at + step));
  figure.point = { line: which, at };
  const curveNumber = figure.chart.data.indexOf(trace);
  const row = grid ? Math.floor(at / trace.z[0].length) : 0;
  const column = grid ? at % trace.z[0].length : at;
  const [x, y] = [trace.x[column], grid ? (trace.y ? trace.y[row] : row) : trace.y[at]];
  const place = `${shown(x)}, ${shown(y)}`;
  const said = grid ? `${place}: ${shown(trace.z[row][column])}` : `${shown(x)}: ${shown(y)}`;
  figure.root.querySelector(".readout").textContent = [plainName(trace.name), said].filter(Boolean).join(", ");
  if (grid || y === null) Plotly.Fx.unhover(figure.chart);
  else Plotly.Fx.hover(figure.chart, [{ curveNumber, pointNumber: at }], subplot(trace));
}

/** A name as it was before it was made inert for Plotly. */
function plainName(name) {
  return (name || "").replaceAll("<br>", " ").replaceAll("&lt;", "<").replaceAll("&gt;", ">").replaceAll("&amp;", "&");
}

function subplot(trace) {
  return (trace.xaxis || "x") + (trace.yaxis || "y");
}
