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

function ink(name) {
  return SETTINGS.palette.ink[name][isDark() ? 1 : 0];
}

function faded(colour, opacity) {
  const part = (at) => parseInt(colour.slice(at, at + 2), 16);
  return `rgba(${part(1)}, ${part(3)}, ${part(5)}, ${opacity})`;
}

function modelColour(index) {
  const colours = SETTINGS.palette.models[isDark() ? 1 : 0];
  return colours[index % colours.length];
}

/** Black or white, whichever is read better on a colour. */
function readableOn(ground) {
  const light = (at) => (parseInt(ground.slice(at, at + 2), 16) / 255) ** 2.2;
  return 0.2126 * light(1) + 0.7152 * light(3) + 0.0722 * light(5) > 0.18 ? "#000000" : "#ffffff";
}

/** A name of the palette (`model:0/0.2`, `kind:ssm`, `on:ssm`, `ink`) as a colour; any other string as it is. */
function colour(name) {
  const [, base, opacity] = /^(.*?)(?:\/([\d.]+))?$/s.exec(name);
  let found = null;
  if (base.startsWith("on:")) return readableOn(colour(`kind:${base.slice(3)}`));
  if (/^model:\d+$/.test(base)) found = modelColour(Number(base.slice(6)));
  else if (base.startsWith("kind:")) {
    const kinds = SETTINGS.palette.kinds;
    const kind = base.slice(5);
    found = (Object.hasOwn(kinds, kind) ? kinds[kind] : kinds.other)[isDark() ? 1 : 0];
  } else if (Object.hasOwn(SETTINGS.palette.ink, base)) found = ink(base);
  if (found === null) return name;
  return opacity === undefined ? found : faded(found, opacity);
}

function scale(name) {
  return SETTINGS.palette[name === "diverging" ? "diverging" : name === "sequential" ? "sequential" : ""] || name;
}

/** Colour at a place from 0 to 1 of a colour scale. */
function scaleColour(name, place) {
  const stops = SETTINGS.palette[name];
  const at = Math.min(1, Math.max(0, place));
  let next = stops.findIndex(([stop]) => stop >= at);
  next = Math.max(1, next);
  const [low, high] = [stops[next - 1], stops[next]];
  const share = (at - low[0]) / (high[0] - low[0]);
  const part = (from) => {
    const [a, b] = [low[1], high[1]].map((hex) => parseInt(hex.slice(from, from + 2), 16));
    return Math.round(a + share * (b - a));
  };
  return [part(1), part(3), part(5)];
}
