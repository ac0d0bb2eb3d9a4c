// The text of a prompt, its tokens coloured by a metric.

/** Bounds between which nearly all values lie: an outlier does not bleach the others. */
function bounds(rows) {
  const values = rows.flat().filter((value) => value !== null).sort((a, b) => a - b);
  if (!values.length) return null;
  const at = (share) => values[Math.round(share * (values.length - 1))];
  const [low, high] = [at(0.02), at(0.98)];
  return high > low ? [low, high] : [values[0], values[values.length - 1]];
}

/** Rows of a metric: a row per state starts at depth 0, a row per layer at 1. */
function firstDepth(rows, layers) {
  return rows.length === layers ? 1 : 0;
}

/** Ground and text colour of a value; null where there is none. */
function tokenColours(value, range) {
  if (value === null || value === undefined || range === null) return null;
  const place = range[1] > range[0] ? (value - range[0]) / (range[1] - range[0]) : 0.5;
  const steps = SETTINGS.palette.tokens;
  return steps[Math.round(Math.min(1, Math.max(0, place)) * (steps.length - 1))];
}

function tokenElements(tokens, pick) {
  return tokens.map((token, at) =>
    make("span", {
      class: "token", role: "option", id: null, tabindex: "-1", "aria-selected": "false",
      "aria-label": `token ${at}: ${oneLine(token)}`, "data-at": String(at), onclick: () => pick(at),
    }, token === "" ? "∅" : visible(token).replace(/\t/g, "⇥").replace(/\n/g, "⏎\n")),
  );
}

function paintTokens(elements, values, range) {
  elements.forEach((element, at) => {
    const value = values ? values[at] : null;
    const colours = tokenColours(value, range);
    element.style.backgroundColor = colours ? colours[0] : "";
    element.style.color = colours ? colours[1] : "";
    element.classList.toggle("gap", !colours);
    element.title = `token ${at}: ${shown(value)}`;
  });
}

/** The colours with the values at both ends. */
function colourLegend(range) {
  if (range === null) return make("p", { class: "ramp" }, "No values at this layer.");
  const stops = scale("sequential").map(([stop, hex]) => `${hex} ${stop * 100}%`).join(", ");
  const bar = make("span", { class: "ramp-bar", role: "img", "aria-label": "from dark blue to yellow" });
  bar.style.background = `linear-gradient(to right, ${stops})`;
  const [low, high] = range.map((value) => String(Number(value.toPrecision(3))));
  return make("p", { class: "ramp" }, make("span", {}, `≤ ${low}`), bar, make("span", {}, `≥ ${high}`));
}
