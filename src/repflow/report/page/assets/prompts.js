// The prompts explorer: pick a sample and a token, see its path through depth beside the text.

function makeExplorer(settings) {
  const root = document.querySelector(`[data-prompts="${settings.id}"]`);
  const view = { settings, root, at: 0, token: 0, metric: null, depth: null, whole: false, seen: false, stale: true };
  const labels = [...new Set(settings.samples.map((sample) => sample.label))];
  const models = [...new Set(settings.samples.map((sample) => sample.model))];
  const [modelLabel, modelMenu] = select("Model", models, models[0], (model) => pickSample(view, { model }), { "data-control": "model" });
  const [sampleLabel, sampleMenu] = select("Sample", labels, labels[0], (label) => pickSample(view, { label }), { "data-control": "sample" });
  const [metricLabel, metricMenu] = select("Colour by", [], "", (metric) => {
    view.metric = metric;
    working(() => update(view));
  }, { "data-control": "colour" });
  const slider = make("input", { type: "range", min: "0", max: "1", step: "1", "aria-label": "Layer" });
  slider.addEventListener("input", () => {
    view.depth = Number(slider.value);
    working(() => update(view));
  });
  const depthText = make("output", {});
  const rangeOptions = [["layer", "This layer"], ["all", "All layers"]];
  const range = segments("Colour range", `range-${settings.id}`, rangeOptions, "layer", (value) => {
    view.whole = value === "all";
    working(() => update(view));
  });
  Object.assign(view, { modelMenu, sampleMenu, metricMenu, slider, depthText });
  view.list = make("div", { class: "tokens", role: "listbox", tabindex: "-1", "aria-label": "Tokens of the prompt", "aria-orientation": "horizontal" });
  view.list.addEventListener("keydown", (event) => tokenKey(view, event));
  view.ramp = make("div", {});
  view.about = make("p", { class: "about" });
  view.note = make("p", { class: "note", hidden: true });
  view.readout = make("p", { class: "readout", "aria-live": "polite" });
  view.chart = make("div", { class: "chart", role: "group", tabindex: "0", "aria-roledescription": "chart", "aria-label": "Path of the chosen token through depth" });
  const layer = make("label", { class: "menu slider" }, make("span", {}, "Layer"), slider, depthText);
  root.querySelector(".explorer").append(
    make("div", { class: "menus" }, ...(models.length > 1 ? [modelLabel] : []), sampleLabel, metricLabel, layer, range),
    view.about,
    make("div", { class: "split" }, make("div", { class: "text-side" }, view.list, view.ramp), make("div", {}, view.readout, view.chart)),
    view.note,
  );
  addPromptTools(view);
  whenChanged(() => refreshExplorer(view));
  return view;
}

function refreshExplorer(view) {
  view.stale = true;
  if (view.seen) working(() => update(view));
}

function pickSample(view, wish) {
  const { samples } = view.settings;
  const now = { ...samples[view.at], ...wish };
  const found = samples.findIndex((sample) => sample.model === now.model && sample.label === now.label);
  const near = samples.findIndex((sample) => ("model" in wish ? sample.model === now.model : sample.label === now.label));
  view.at = found >= 0 ? found : near;
  view.token = 0;
  working(() => loadSample(view));
}

/** Show the sample at `view.at`: its tokens, its metrics. */
async function loadSample(view) {
  const { samples, id } = view.settings;
  const at = view.at;
  const sample = await data(`data-${id}-${at}`);
  if (at !== view.at) return;
  view.sample = sample;
  view.modelMenu.value = samples[at].model;
  view.sampleMenu.value = samples[at].label;
  const names = Object.keys(sample.metrics);
  if (!names.includes(view.metric)) view.metric = names[0] ?? null;
  view.metricMenu.replaceChildren(...names.map((name) => make("option", { value: name }, words(name))));
  view.metricMenu.value = view.metric ?? "";
  view.elements = tokenElements(sample.tokens, (token) => pickToken(view, token, false));
  view.list.replaceChildren(...view.elements);
  view.about.textContent = visible(sample.text);
  view.note.textContent = visible(sample.note);
  view.note.hidden = !sample.note;
  view.token = Math.min(view.token, sample.tokens.length - 1);
  await update(view);
}

function pickToken(view, token, focus) {
  view.token = Math.max(0, Math.min(view.sample.tokens.length - 1, token));
  working(() => update(view));
  if (focus) view.elements[view.token].focus();
}

function tokenKey(view, event) {
  const steps = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: 10, ArrowUp: -10, Home: -Infinity, End: Infinity };
  if (!(event.key in steps)) return;
  event.preventDefault();
  pickToken(view, view.token + steps[event.key], true);
}

function layersOf(view) {
  const model = MODELS.get(view.settings.samples[view.at].model);
  const most = Math.max(0, ...Object.values(view.sample.metrics).map((rows) => rows.length));
  return model ? model.layers : most - 1;
}

/** Paint the tokens and draw the path again. */
async function update(view) {
  if (!view.sample || view.metric === null) return;
  const layers = layersOf(view);
  const rows = view.sample.metrics[view.metric];
  const first = firstDepth(rows, layers);
  view.slider.min = String(first);
  view.slider.max = String(first + rows.length - 1);
  if (view.depth === null) view.depth = Math.round(layers / 2);
  view.depth = Math.max(first, Math.min(first + rows.length - 1, view.depth));
  view.slider.value = String(view.depth);
  view.depthText.textContent = `${view.depth} of ${first + rows.length - 1}`;
  const values = rows[view.depth - first];
  const range = bounds(view.whole ? rows : [values]);
  paintTokens(view.elements, values, range);
  view.ramp.replaceChildren(colourLegend(range));
  view.elements.forEach((element, at) => {
    element.tabIndex = at === view.token ? 0 : -1;
    element.setAttribute("aria-selected", String(at === view.token));
  });
  const token = oneLine(view.sample.tokens[view.token]);
  view.readout.textContent = `Token ${view.token} “${token}”: ${words(view.metric).toLowerCase()} ${shown(values[view.token])} at layer ${view.depth}`;
  view.stale = false;
  await draw(view.chart, await pathDrawing(view));
}

/** Other chosen models with the very same tokens in the same sample. */
async function comparable(view) {
  const { samples, id } = view.settings;
  const own = samples[view.at];
  const others = [];
  for (const [at, sample] of samples.entries()) {
    if (at === view.at || sample.label !== own.label || sample.model === own.model || sample.tokens !== own.tokens) continue;
    if (state.unchosen.has(sample.model)) continue;
    const loaded = await data(`data-${id}-${at}`);
    if (loaded.tokens.every((token, place) => token === view.sample.tokens[place])) others.push([sample.model, loaded]);
  }
  return [[own.model, view.sample], ...others];
}

/** One panel per metric, one line per model, over depth. */
async function pathDrawing(view) {
  const drawn = await comparable(view);
  const names = Object.keys(view.sample.metrics);
  const traces = [];
  names.forEach((name, panel) => {
    for (const [model, sample] of drawn) {
      const rows = sample.metrics[name];
      if (!rows) continue;
      const layers = MODELS.has(model) ? MODELS.get(model).layers : layersOf(view);
      const absolute = rows.map((_, at) => at + firstDepth(rows, layers));
      traces.push({
        type: "scatter", mode: "lines+markers", name: model, legendgroup: model, showlegend: panel === 0 && drawn.length > 1,
        yaxis: panel ? `y${panel + 1}` : "y", y: rows.map((row) => row[view.token]),
        opacity: model === drawn[0][0] ? 1 : 0.6, marker: { size: 4 },
        meta: { model, x: { absolute, relative: absolute.map((depth) => depth / layers) } },
      });
    }
  });
  const layers = layersOf(view);
  const x = state.depth === "relative" ? view.depth / layers : view.depth;
  const layout = { xaxis: { anchor: names.length > 1 ? `y${names.length}` : "y" }, hovermode: "x" };
  const gap = 0.11; // room for the name of each panel
  const size = (1 - gap * (names.length - 1)) / names.length;
  names.forEach((name, panel) => {
    const top = 1 - panel * (size + gap);
    layout[axisKey(panel ? `y${panel + 1}` : "y")] = { domain: [Math.max(0, top - size), top], nticks: 4 };
  });
  const line = { type: "line", xref: "x", yref: "paper", x0: x, x1: x, y0: 0, y1: 1, line: { color: "muted", width: 1, dash: "dot" } };
  const figure = { id: view.settings.id, depth: true, models: false, height: Math.max(240, 140 * names.length + 60), top: 30 };
  layout.shapes = [line];
  const heads = names.map((name, panel) => ({
    text: words(name), xref: "paper", yref: `${panel ? `y${panel + 1}` : "y"} domain`, x: 0, y: 1, xanchor: "left", yanchor: "bottom",
  }));
  const empty = names
    .map((name, panel) => [panel ? `y${panel + 1}` : "y", view.sample.metrics[name].every((row) => row[view.token] === null)])
    .filter(([, none]) => none)
    .map(([axis]) => ({ text: "no value for this token", xref: "paper", yref: `${axis} domain`, x: 0.5, y: 0.5, font: { color: "muted" } }));
  layout.annotations = [...heads, ...empty];
  const wide = NARROW.matches ? { ...figure, height: null } : figure;
  const picture = drawing({ traces, layout }, wide, { width: view.chart.clientWidth });
  if (NARROW.matches) picture.height = picture.layout.height += figure.height - PLAIN.narrow;
  return picture;
}

function addPromptTools(view) {
  const parts = () => [SETTINGS.title, view.settings.id, view.settings.samples[view.at].model, view.settings.samples[view.at].label];
  const picture = (format) => () => savePicture(view.chart, format, [...parts(), `token-${view.token}`]);
  view.root.querySelector(".tools").append(
    toolButton("CSV", "All values of this sample as CSV", async () => {
      const layers = layersOf(view);
      const rows = [];
      for (const [name, values] of Object.entries(view.sample.metrics)) {
        const first = firstDepth(values, layers);
        values.forEach((row, at) => row.forEach((value, token) => rows.push([name, at + first, token, view.sample.tokens[token], value])));
      }
      saveCsv(["metric", "depth", "position", "token", "value"], rows, parts());
    }),
    toolButton("SVG", "The token's path as SVG", picture("svg")),
    toolButton("PNG", "The token's path as PNG", picture("png")),
    linkButton(view.settings.title, () => explorerAddress(view)),
  );
}
