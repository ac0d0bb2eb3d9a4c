// The settings that all figures share, the theme, and what starts the page.

const THEMES = ["system", "light", "dark"];
const shared = new Map();

function refreshAll() {
  figures.forEach(refresh);
}
whenChanged(refreshAll);

function applyTheme(theme) {
  state.theme = theme;
  if (theme === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
  const button = BY_ID("page-theme");
  button.textContent = { system: "◐ Auto", light: "○ Light", dark: "● Dark" }[theme];
  button.setAttribute("aria-label", `Theme: ${theme === "system" ? "as the system" : theme}; press to change`);
  document.querySelectorAll(".swatch").forEach((swatch) => {
    swatch.style.backgroundColor = colour(`model:${swatch.dataset.colour}`);
  });
}

function addTheme() {
  applyTheme("system");
  BY_ID("page-theme").addEventListener("click", () => {
    // the first press gives what the system has not, so that something is seen to happen
    const order = SYSTEM_DARK.matches ? ["system", "light", "dark"] : ["system", "dark", "light"];
    applyTheme(order[(order.indexOf(state.theme) + 1) % order.length]);
    changed();
  });
  SYSTEM_DARK.addEventListener("change", () => {
    applyTheme(state.theme);
    changed();
  });
}

function addModels(place) {
  if (SETTINGS.models.length < 2) return;
  const boxes = SETTINGS.models.map((model) => {
    const swatch = make("span", { class: "swatch", "data-colour": String(model.colour) });
    const box = make("input", { type: "checkbox", checked: true, name: "models", value: model.label });
    box.addEventListener("change", () => {
      if (box.checked) state.unchosen.delete(model.label);
      else state.unchosen.add(model.label);
      changed();
    });
    return [make("label", { class: "check" }, box, swatch, make("bdi", {}, model.label)), box, model];
  });
  const all = (checked) => () => {
    state.unchosen = new Set(checked ? [] : SETTINGS.models.map((model) => model.label));
    boxes.forEach(([, box]) => (box.checked = checked));
    changed();
  };
  place.append(
    make("fieldset", { class: "checks" }, make("legend", {}, "Models"), ...boxes.map(([label]) => label),
      make("div", { class: "row" },
        make("button", { type: "button", class: "button small", onclick: all(true) }, "All"),
        make("button", { type: "button", class: "button small", onclick: all(false) }, "None"))),
  );
}

/** A menu for each control that several figures have; it sets them all. */
function addShared(place) {
  const found = new Map();
  for (const figure of figures) {
    for (const name of figure.selects.keys()) {
      if (!found.has(name)) found.set(name, []);
      found.get(name).push(figure.menus.get(name));
    }
  }
  for (const [name, menus] of found) {
    const values = new Set(menus.flat());
    if (values.size === menus.flat().length) continue; // no value is known to two figures
    const [label, menu] = select(words(name), [...values], "", (value) => {
      figures.filter((figure) => figure.selects.has(name)).forEach((figure) => choose(figure, name, value));
      showShared();
    }, { "data-shared": name });
    menu.prepend(make("option", { value: "", disabled: true, hidden: true }, "differs by figure"));
    shared.set(name, menu);
    place.append(label);
  }
  showShared();
}

/** What the shared menus say: the value that all figures have, or that they differ. */
function showShared() {
  for (const [name, menu] of shared) {
    const values = new Set(figures.filter((figure) => figure.selects.has(name)).map((figure) => figure.selects.get(name).value));
    menu.value = values.size === 1 ? [...values][0] : "";
  }
}

function addControls() {
  const place = BY_ID("page-controls");
  place.addEventListener("submit", (event) => event.preventDefault());
  addModels(place);
  addShared(place);
  if (figures.some((figure) => figure.depth) || SETTINGS.prompts.length) {
    const options = [["relative", "Relative"], ["absolute", "Layers"]];
    place.append(segments("Depth", "page-depth", options, state.depth, (value) => {
      state.depth = value;
      changed();
    }));
  }
  applyTheme(state.theme);
}

function addMenuButton() {
  const [button, drawer] = [BY_ID("page-menu"), BY_ID("page-drawer")];
  const show = (open) => {
    drawer.classList.toggle("open", open);
    button.setAttribute("aria-expanded", String(open));
    button.textContent = open ? "Close" : "Menu";
  };
  button.addEventListener("click", () => show(!drawer.classList.contains("open")));
  BY_ID("page-nav").addEventListener("click", (event) => event.target.closest("a") && show(false));
  document.addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || !drawer.classList.contains("open")) return;
    show(false);
    button.focus();
  });
}

const FOLDED = 12;

/** Long tables show their first rows; a button shows all. */
function fold(card) {
  const table = card.querySelector("table");
  const rows = table.tBodies[0].rows.length;
  if (rows <= FOLDED + 3) return;
  const button = make("button", { type: "button", class: "button small fold", "aria-expanded": "false" });
  const show = (all) => {
    table.classList.toggle("folded", !all);
    button.setAttribute("aria-expanded", String(all));
    button.textContent = all ? `Show the first ${FOLDED} rows` : `Show all ${rows} rows`;
  };
  button.addEventListener("click", () => show(table.classList.contains("folded")));
  card.querySelector(".scroll").after(button);
  show(false);
}

function addTables() {
  for (const card of document.querySelectorAll("[data-table]")) {
    fold(card);
    const title = card.querySelector("h3").textContent;
    card.querySelector(".tools").append(toolButton("CSV", `${title} as CSV`, async () => {
      const { columns, rows } = await data(`data-${card.id}`);
      saveCsv(columns, rows, [SETTINGS.title, card.id]);
    }));
  }
}

/** Mark the section in view in the navigation. */
function watchSections() {
  const links = new Map([...document.querySelectorAll("#page-nav a")].map((link) => [link.hash.slice(1), link]));
  const watcher = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      if (!entry.isIntersecting) continue;
      links.forEach((link, id) => (id === entry.target.id ? link.setAttribute("aria-current", "true") : link.removeAttribute("aria-current")));
    }
  }, { rootMargin: "-15% 0px -75% 0px" });
  document.querySelectorAll("main > section").forEach((section) => watcher.observe(section));
}

/** Draw figures and explorers when they come near the window. */
function watchCharts(explorers) {
  const parts = new Map();
  figures.forEach((figure) => parts.set(figure.root, { part: figure, show: () => figure.stale && queue(figure) }));
  explorers.forEach((view) => parts.set(view.root, { part: view, show: () => view.stale && working(() => (view.sample ? update(view) : loadSample(view))) }));
  const watcher = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      const { part, show } = parts.get(entry.target);
      part.seen = entry.isIntersecting;
      if (part.seen) show();
    }
    working(() => null); // nothing in view needs drawing: ready
  }, { rootMargin: "200px 0px" });
  parts.forEach((_, root) => watcher.observe(root));
  NARROW.addEventListener("change", changed);
}

/** Stay at the part that a link named while figures above it are drawn and grow; until the reader moves. */
function keepTarget(explorers) {
  let target = null;
  const aim = () => {
    target = applyAddress(explorers);
    if (target) target.scrollIntoView({ behavior: "instant" });
    setTimeout(() => (target = null), 3000);
  };
  window.addEventListener("hashchange", aim);
  document.addEventListener("click", (event) => {
    const link = event.target.closest("a[href^='#']");
    if (link) reveal(BY_ID(decodeURIComponent(link.hash.slice(1)).split("?")[0])); // the same address again changes nothing
  });
  for (const moved of ["wheel", "touchmove", "keydown", "pointerdown"]) window.addEventListener(moved, () => (target = null), { passive: true });
  whenIdle.push(() => target && target.scrollIntoView({ behavior: "instant" }));
  if (location.hash.length > 1) aim();
}

function start() {
  addTheme();
  SETTINGS.figures.forEach(makeFigure);
  const explorers = SETTINGS.prompts.filter((prompts) => prompts.samples.length).map(makeExplorer);
  addControls();
  addMenuButton();
  addTables();
  watchSections();
  watchCharts(explorers);
  keepTarget(explorers);
  addPrinting();
}

start();
