// Text is data: elements are made with textContent, and Plotly's own small markup is switched off.

const BY_ID = (id) => document.getElementById(id);

/** Element with attributes and children; strings become text nodes, never markup. */
function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name in element && typeof value !== "string") element[name] = value;
    else if (value !== null && value !== undefined) element.setAttribute(name, value);
  }
  element.append(...children.map((child) => (typeof child === "string" ? visible(child) : child)));
  return element;
}

// Characters that act on their neighbours instead of being seen: controls, direction marks, line separators.
const UNSEEN =
  /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\u2028\u2029\ufeff]|[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]/g;

function visible(text) {
  return String(text).replace(UNSEEN, (c) => `[U+${c.charCodeAt(0).toString(16).toUpperCase().padStart(4, "0")}]`);
}

/** A token on one line, its white space written out. */
function oneLine(text) {
  return visible(text).replace(/\n/g, "⏎").replace(/\t/g, "⇥");
}

const TEMPLATES = new Set(["hovertemplate", "texttemplate"]);
const ALLOWED = /&lt;(\/?(?:b|extra)|br ?\/?)&gt;/g; // what templates of ours use; they hold no outside text

/** A string for Plotly that it shows as it stands; a newline breaks the line. */
function inert(text, key) {
  const escaped = visible(text).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
  if (TEMPLATES.has(key)) return escaped.replace(ALLOWED, "<$1>").replace(/\n/g, "<br>");
  return escaped.replace(/\n/g, "<br>");
}

/** Copy of a trace or layout in which every string is inert and every colour of the palette is written out. */
function prepared(value, key = "") {
  if (typeof value === "string") return /color$/.test(key) ? colour(value) : inert(value, key);
  if (Array.isArray(value)) {
    // numbers are most of the data: copied as they are
    return value.length && typeof value[0] === "number" ? value.slice() : value.map((entry) => prepared(entry, key));
  }
  if (value === null || typeof value !== "object") return value;
  const copy = {};
  for (const [name, entry] of Object.entries(value)) {
    if (name === "meta") continue;
    copy[name] = name === "colorscale" && typeof entry === "string" ? scale(entry) : prepared(entry, name);
  }
  return copy;
}

/** Exact enough to be read back: six significant digits. */
function shown(value) {
  if (value === null || value === undefined) return "no value";
  return typeof value === "number" ? String(Number(value.toPrecision(6))) : visible(value);
}
