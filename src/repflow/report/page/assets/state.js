// What the reader has chosen: models, depth axis, theme; and the colours that follow from it.

const SETTINGS = JSON.parse(BY_ID("page-settings").textContent);
const MODELS = new Map(SETTINGS.models.map((model) => [model.label, model]));
const SYSTEM_DARK = window.matchMedia("(prefers-color-scheme: dark)");
const NARROW = window.matchMedia("(max-width: 860px)");
const COARSE = window.matchMedia("(pointer: coarse)");

const state = {
  unchosen: new Set(),
  depth: SETTINGS.models.length === 1 ? "absolute" : "relative",
  theme: "system",
  paper: null, // pixels of a sheet while it is printed
};

const listeners = [];

/** Call `action` after each change of what all figures share. */
function whenChanged(action) {
  listeners.push(action);
}

function changed() {
  listeners.forEach((action) => action());
}

let atWork = 0;
const whenIdle = [];

/** Do some drawing; `data-ready` of the document says when none is left. */
async function working(action) {
  atWork += 1;
  document.documentElement.dataset.ready = "false";
  try {
    return await action();
  } finally {
    atWork -= 1;
    if (!atWork) {
      document.documentElement.dataset.ready = "true";
      whenIdle.forEach((action) => action());
    }
  }
}

function isDark() {
  return state.theme === "system" ? SYSTEM_DARK.matches : state.theme === "dark";
}

/** True when all models of a trace, a shape or an annotation are chosen. */
function isChosen(part) {
  const model = part.meta && part.meta.model;
  return (Array.isArray(model) ? model : [model]).every((label) => !state.unchosen.has(label));
}

/** A name of the palette as a colour, in the theme of the moment; any other string as it is. */
function colour(name) {
  const colours = SETTINGS.palette.colours;
  return Object.hasOwn(colours, name) ? colours[name][isDark() ? 1 : 0] : name;
}

const ink = colour;

function scale(name) {
  return Object.hasOwn(SETTINGS.palette.scales, name) ? SETTINGS.palette.scales[name] : name;
}
