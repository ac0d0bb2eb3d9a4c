// The address of a figure with its settings: #figure-2?measure=raw&depth=absolute&without=mamba. Folds open on the way.

/** Part of the page that an address names, and its settings. */
function parsedAddress() {
  const [id, ...settings] = location.hash.slice(1).split("?");
  return { id: decodeURIComponent(id), settings: new URLSearchParams(settings.join("?")) };
}

/** Settings of all figures that a link should bring back. */
function sharedSettings(settings, depth) {
  if (depth) settings.set("depth", state.depth);
  [...state.unchosen].forEach((label) => settings.append("without", label));
  return settings;
}

function figureAddress(figure) {
  const settings = new URLSearchParams();
  for (const [name, menu] of figure.selects) settings.set(name, menu.value);
  if (figure.log) settings.set("scale", figure.useLog ? "log" : "linear");
  return `#${figure.id}?${sharedSettings(settings, figure.depth)}`;
}

function explorerAddress(view) {
  const settings = new URLSearchParams({ model: view.modelMenu.value, sample: view.sampleMenu.value, token: String(view.token) });
  if (view.metric !== null) settings.set("colour", view.metric);
  if (view.depth !== null) settings.set("layer", String(view.depth));
  return `#${view.settings.id}?${sharedSettings(settings, true)}`;
}

/** A button that puts the address of what is shown into the address line and on the clipboard. */
function linkButton(title, address) {
  const button = toolButton("Link", `Link to ${title} as it is shown`, async () => {
    history.replaceState(null, "", address());
    try {
      await navigator.clipboard.writeText(location.href);
      button.textContent = "Copied";
    } catch {
      button.textContent = "In the address line"; // no clipboard: the address line has it
    }
    setTimeout(() => (button.textContent = "Link"), 2000);
  });
  return button;
}

/** Open every fold that a part lies in. */
function reveal(element) {
  for (let fold = element && element.closest("details"); fold; fold = fold.parentElement.closest("details")) fold.open = true;
}

/** Show what the address asks for: models and depth of all figures, then the menus of the one that it names. */
function applyAddress(explorers) {
  const { id, settings } = parsedAddress();
  const element = id ? BY_ID(id) : null;
  reveal(element);
  if (!element || ![...settings.keys()].length) return element;
  setShared(settings.getAll("without"), settings.get("depth"));
  const figure = figures.find((one) => one.id === id);
  const view = explorers.find((one) => one.settings.id === id);
  if (figure) setFigure(figure, settings);
  if (view) setExplorer(view, settings);
  return element;
}

function setShared(without, depth) {
  state.unchosen = new Set(without.filter((label) => MODELS.has(label)));
  document.querySelectorAll("input[name=models]").forEach((box) => (box.checked = !state.unchosen.has(box.value)));
  const chosen = document.querySelector(`input[name=page-depth][value="${depth === "absolute" ? "absolute" : "relative"}"]`);
  if (depth && chosen) {
    state.depth = chosen.value;
    chosen.checked = true;
  }
  changed();
}

function setFigure(figure, settings) {
  for (const name of figure.selects.keys()) {
    if (settings.has(name)) choose(figure, name, settings.get(name));
  }
  const scale = figure.root.querySelector(`input[name="scale-${figure.id}"][value="${settings.get("scale") === "log" ? "log" : "linear"}"]`);
  if (settings.has("scale") && scale) {
    figure.useLog = settings.get("scale") === "log";
    scale.checked = true;
    refresh(figure);
  }
  showShared();
}

function setExplorer(view, settings) {
  const wanted = { model: settings.get("model"), label: settings.get("sample") };
  const place = view.settings.samples.findIndex((sample) => sample.model === wanted.model && sample.label === wanted.label);
  if (place >= 0) view.at = place;
  view.token = Number.parseInt(settings.get("token"), 10) || 0;
  view.metric = settings.get("colour");
  view.depth = settings.has("layer") ? Number.parseInt(settings.get("layer"), 10) || 0 : view.depth;
  working(() => loadSample(view));
}
