// From a variant and what the reader chose to what Plotly draws.

const FONT = 'system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif';
const SHORT_TITLES = { relative: "relative depth", absolute: "layer" };
const DEPTH_TITLES = { relative: "relative depth (0 embedding, 1 last layer)", absolute: "layer (0 embedding)" };
const HOVER = ".6~g";
const LETTER = 6.8; // pixels of a letter of the legend, on the average
const GAP = { x: 78, y: 84 };
const PANEL = { wide: 300, narrow: 280 };
const NAME = { wide: 28, narrow: 16 };
const OPENING = { wide: 340, narrow: 320 }; // with its cards on the first screen
const ROOM = 480; // of the opening chart, at most
const TALL = 600;
const PLAIN = { wide: 360, narrow: 320 };

/** "xaxis3" of "x3". */
function axisKey(short) {
  return short[0] + "axis" + short.slice(1);
}

/** Traces of chosen models, less the heat maps without any value: a panel of nothing has no axes to draw. */
function shownTraces(variant, figure) {
  const chosen = figure.models ? variant.traces.filter(isChosen) : variant.traces;
  const full = chosen.filter((trace) => trace.type !== "heatmap" || hasValues({ z: trace.z }));
  return full.length ? full : chosen;
}

/** Traces of chosen models, at their place on the depth axis, in their colours. */
function chosenTraces(variant, figure) {
  return splitBands(shownTraces(variant, figure).map((trace) => {
    const copy = prepared(trace);
    const meta = trace.meta || {};
    if (figure.depth) {
      for (const axis of ["x", "y"]) {
        if (meta[axis] && meta[axis][state.depth]) copy[axis] = prepared(meta[axis][state.depth]);
      }
    }
    return styled(copy, meta);
  }));
}

/** Bands end at a gap: Plotly would fill across it. The lower edge is the trace before the filled one. */
function splitBands(traces) {
  traces.forEach((upper, at) => {
    const lower = traces[at - 1];
    if (upper.fill !== "tonexty" || !lower || !Array.isArray(upper.x) || !Array.isArray(upper.y)) return;
    const gap = upper.y.map((y, place) => y === null || lower.y[place] === null);
    if (!gap.includes(true)) return;
    const [x, y] = [[], []];
    for (let from = 0; from < gap.length; from += 1) {
      if (gap[from]) continue;
      let to = from;
      while (to < gap.length && !gap[to]) to += 1;
      x.push(...upper.x.slice(from, to), ...lower.x.slice(from, to).reverse(), null);
      y.push(...upper.y.slice(from, to), ...lower.y.slice(from, to).reverse(), null);
      from = to;
    }
    Object.assign(upper, { x, y, fill: "toself" });
  });
  return traces;
}

function hasValues(trace) {
  const any = (values) => Array.isArray(values) && values.some((value) => (Array.isArray(value) ? any(value) : value !== null));
  return any(trace.z) || any(trace.y) || any(trace.x);
}

function styled(trace, meta) {
  const model = typeof meta.model === "string" ? MODELS.get(meta.model) : undefined;
  const type = trace.type || "scatter";
  if (type === "heatmap") {
    trace.hoverongaps = false;
    trace.zhoverformat ??= HOVER;
    if (!trace.coloraxis) {
      trace.colorscale ??= scale("sequential");
      trace.colorbar = colorbar(trace.colorbar);
    }
  }
  if (!model) return trace;
  const own = colour(`model:${model.colour}`);
  if (type === "scatter" && trace.fill && trace.fill !== "none") {
    trace.fillcolor ??= colour(`model:${model.colour}/0.18`);
    trace.line = { width: 0, color: own, ...trace.line };
  } else if (type === "scatter") {
    trace.line = { color: own, dash: model.dash, width: 2, ...trace.line };
    trace.marker = { color: own, symbol: model.marker, size: 6, ...trace.marker };
  } else if (["bar", "histogram", "box", "violin"].includes(type)) {
    trace.marker = { color: own, ...trace.marker };
    if (type !== "bar" && type !== "histogram") trace.line = { color: own, ...trace.line };
  }
  return trace;
}

/** Beside the chart, or below it where there is no room beside it. */
function colorbar(own = {}) {
  const bar = { thickness: 12, xpad: 20, outlinewidth: 0, tickfont: { color: ink("muted"), size: 11 }, ...own };
  if (typeof bar.title === "string") bar.title = { text: bar.title };
  if (NARROW.matches) {
    const below = { orientation: "h", x: 0.5, xanchor: "center", y: 0, yanchor: "bottom", yref: "container" };
    Object.assign(bar, below, { len: 0.9, thickness: 10 });
    if (bar.title) bar.title = { ...bar.title, text: `${bar.title.text}<br> `, side: "top" }; // a line lower it lies on a small bar
  } else if (bar.title) bar.title = { side: "right", ...bar.title };
  if (bar.title) bar.title.font = { size: 12, color: ink("muted") };
  return bar;
}

/** Layout of a variant: moved along the depth axis, without what belongs to unchosen models. */
function chosenLayout(variant, figure) {
  const kept = { ...variant.layout };
  for (const part of ["shapes", "annotations"]) {
    if (!kept[part]) continue;
    kept[part] = kept[part].filter((entry) => !figure.models || isChosen(entry)).map((entry) => {
      const copy = prepared(entry);
      const place = figure.depth && entry.meta && entry.meta[state.depth];
      if (place) {
        const axis = entry.meta.axis || "x";
        if (part === "shapes") [copy[axis + "0"], copy[axis + "1"]] = place;
        else copy[axis] = Array.isArray(place) ? place[0] : place;
      }
      return copy;
    });
  }
  const { shapes, annotations, ...others } = kept;
  const layout = prepared(others);
  if (shapes) layout.shapes = shapes;
  if (annotations) layout.annotations = annotations;
  return layout;
}

/** Leave out empty panels of small multiples and count the rest anew. */
function repack(traces, layout, all) {
  const index = (short) => Number((short || "x").slice(1)) || 1;
  const before = new Set(all.map((trace) => index(trace.xaxis)));
  const kept = [...new Set(traces.map((trace) => index(trace.xaxis)))].sort((a, b) => a - b);
  if (kept.length !== before.size && kept.length) {
    const place = new Map(kept.map((old, at) => [old, at === 0 ? "" : String(at + 1)]));
    const renamed = (short) => short[0] + place.get(index(short));
    for (const trace of traces) {
      trace.xaxis = renamed(trace.xaxis || "x");
      trace.yaxis = renamed(trace.yaxis || "y");
    }
    for (const part of ["shapes", "annotations"]) {
      layout[part] = (layout[part] || []).filter((entry) => {
        for (const ref of ["xref", "yref"]) {
          const found = /^([xy]\d*)( domain)?$/.exec(entry[ref] || "paper");
          if (!found) continue;
          if (!place.has(index(found[1]))) return false;
          entry[ref] = renamed(found[1]) + (found[2] || "");
        }
        return true;
      });
    }
    const axes = Object.entries(layout).filter(([key]) => /^[xy]axis\d*$/.test(key));
    axes.forEach(([key]) => delete layout[key]);
    for (const [key, axis] of axes) {
      const number = Number(key.slice(5)) || 1;
      if (!place.has(number)) continue;
      if (axis.matches) axis.matches = place.has(index(axis.matches)) ? renamed(axis.matches) : undefined;
      if (/^[xy]/.test(axis.anchor || "")) axis.anchor = renamed(axis.anchor);
      layout[key.slice(0, 5) + place.get(number)] = axis;
    }
  }
  const columns = NARROW.matches ? 1 : Math.min(layout.grid.columns || 1, kept.length || 1);
  const rows = Math.max(1, Math.ceil(kept.length / columns));
  layout.grid = { ...layout.grid, rows, columns, pattern: "independent" };
  return rows;
}

/** Room in pixels between panels for ticks, titles and headings; Plotly counts it in parts of a panel. */
function addGaps(grid, width, height) {
  grid.xgap = Math.min(0.5, GAP.x / Math.max(1, width / grid.columns));
  grid.ygap = Math.min(0.5, GAP.y / Math.max(1, height / grid.rows));
}

function styledAxis(axis, { log, linear }) {
  const text = typeof axis.title === "string" ? { text: axis.title } : axis.title || {};
  const styledOne = {
    gridcolor: ink("grid"), linecolor: ink("muted"), tickcolor: ink("muted"), zeroline: false, automargin: true,
    hoverformat: HOVER, ...axis,
    title: { standoff: 8, ...text, font: { size: 13, color: ink("ink"), ...text.font } },
    tickfont: { size: 12, color: ink("muted"), ...axis.tickfont },
  };
  if (log) {
    styledOne.type = "log";
    styledOne.exponentformat = "power";
    delete styledOne.range;
    delete styledOne.rangemode;
  } else if (linear && styledOne.type === "log") {
    styledOne.type = "linear";
    delete styledOne.range;
  }
  return styledOne;
}

/** On an axis of a few decades Plotly writes every digit from 1 to 9, one over the other: 1, 2 and 5 are enough. */
function fewDigits(key, axis, traces) {
  if (axis.type !== "log" || axis.dtick !== undefined || axis.tickvals !== undefined) return;
  const own = traces.filter((trace) => axisKey(trace[key[0] + "axis"] || key[0]) === key);
  const values = own.flatMap((trace) => (Array.isArray(trace[key[0]]) ? trace[key[0]] : [])).filter((value) => typeof value === "number" && value > 0);
  let [low, high] = [Infinity, 0];
  for (const value of values) [low, high] = [Math.min(low, value), Math.max(high, value)];
  const decades = Math.log10(high / low);
  if (decades > 0.8 && decades < 4) axis.dtick = decades < 2.5 ? "D2" : 1;
}

/** One colour bar stays where the panel that had it is unchosen or empty. */
function showScale(traces) {
  const maps = traces.filter((trace) => trace.type === "heatmap" && trace.colorbar && trace.colorbar.title && hasValues({ z: trace.z }));
  if (maps.length && maps.every((trace) => trace.showscale === false)) maps[0].showscale = true;
}

/** Long names below a chart are cut; pointing at a value shows the whole. */
function cutNames(axis, traces) {
  const names = [...new Set(traces.flatMap((trace) => trace.x || []))];
  axis.tickvals = names;
  axis.ticktext = names.map((name) => shortened(name, NARROW.matches ? NAME.narrow : NAME.wide));
}

/** Axes of the depth: their title, whole numbers for layers, no room for layers that are not there. */
function depthAxes(traces, sources, layout) {
  const ends = {};
  sources.forEach((source, at) => {
    for (const axis of ["x", "y"]) {
      if (!source.meta || !source.meta[axis]) continue;
      const key = axisKey(traces[at][axis + "axis"] || axis);
      const own = (layout[key] = layout[key] || {});
      delete own.range;
      if (!own.title || !(own.title.text || typeof own.title === "string")) own.title = { text: (layout.grid || NARROW.matches ? SHORT_TITLES : DEPTH_TITLES)[state.depth] };
      if (state.depth !== "absolute") continue;
      const last = source.meta[axis].absolute;
      own.tickformat = "d";
      if (last && last.length && last[last.length - 1] <= 12) own.dtick = 1;
      if (last && last.length && axis === "x" && traces[at].type !== "heatmap") (ends[key] = ends[key] || []).push(...last);
    }
  });
  for (const [key, places] of Object.entries(ends)) layout[key].range = [Math.min(...places) - 0.5, Math.max(...places) + 0.5];
}

/** What Plotly draws: {data, layout, height, hidden} with the number of values that a log axis cannot show. */
function drawing(variant, figure, { log = false, width = 900 } = {}) {
  const sources = shownTraces(variant, figure);
  const traces = chosenTraces(variant, figure);
  const layout = chosenLayout(variant, figure);
  const rows = layout.grid ? repack(traces, layout, variant.traces) : 1;
  if (figure.depth) depthAxes(traces, sources, layout);
  const used = new Set(["xaxis", "yaxis"]);
  for (const trace of traces) used.add(axisKey(trace.xaxis || "x")).add(axisKey(trace.yaxis || "y"));
  const hasBar = traces.some((trace) => trace.type === "heatmap") && NARROW.matches;
  for (const key of new Set([...used, ...Object.keys(layout).filter((name) => /^[xy]axis\d*$/.test(name))])) {
    layout[key] = styledAxis(layout[key] || {}, { log: log && key[0] === "y", linear: figure.log && !log && key[0] === "y" });
  }
  for (const key of Object.keys(layout).filter((name) => /^[xy]axis\d*$/.test(name))) fewDigits(key, layout[key], traces);
  if (layout.xaxis.type === "category" && layout.xaxis.tickvals === undefined) cutNames(layout.xaxis, traces);
  for (const key of Object.keys(layout).filter((name) => /^coloraxis\d*$/.test(name))) {
    layout[key] = { colorscale: scale("sequential"), ...layout[key], colorbar: colorbar(layout[key].colorbar) };
  }
  showScale(traces);
  const named = traces.filter((trace) => trace.name && (trace.type === "heatmap" ? trace.showlegend : trace.showlegend !== false));
  const legend = layout.showlegend ?? named.length > 1;
  traces.forEach((trace) => trace.name && (trace.name = shortened(trace.name, (width - 90) / LETTER)));
  const own = chartHeight(figure, variant, rows) + (hasBar ? 60 : 0) + (legend ? 19 * (legendRows(named, width) - 1) : 0);
  const height = Math.max(own, openingRoom(figure));
  if (layout.grid) addGaps(layout.grid, width, height);
  const nothing = sources.length < variant.traces.length ? "No model of this figure is chosen." : "No values.";
  const empty = traces.some(hasValues) ? [] : [notice(nothing)];
  const whole = {
    ...layout,
    height,
    ...(state.paper ? { width: state.paper, autosize: false } : { width: undefined, autosize: true }),
    showlegend: legend,
    paper_bgcolor: ink("paper"), plot_bgcolor: ink("paper"),
    font: { family: FONT, size: 13, color: ink("ink") },
    margin: { l: 12, r: 12, t: figure.top || (layout.grid ? 34 : 14), b: hasBar ? 110 : 12 },
    legend: { orientation: "h", x: 0, xanchor: "left", y: 1.02, yanchor: "bottom", font: { size: 12 }, traceorder: "normal", ...layout.legend },
    hoverlabel: { bgcolor: ink("paper"), bordercolor: ink("muted"), font: { color: ink("ink"), family: FONT, size: 13 }, namelength: -1 },
    hovermode: layout.hovermode || "closest",
    dragmode: COARSE.matches ? false : layout.dragmode || "zoom",
    annotations: [...(layout.annotations || []).map((entry) => styledAnnotation(entry, layout.grid, width)), ...empty],
    uirevision: figure.id,
  };
  if ((layout.grid || figure.top) && legend) {
    // panels have headings: the legend stays above them
    Object.assign(whole.legend, { yref: "container", y: 1, yanchor: "top" });
    whole.margin.t += 4 + 19 * legendRows(named, width);
  }
  return { data: traces, layout: whole, height, hidden: log ? notAboveZero(traces) : 0 };
}

/** Lines of the legend: Plotly gives each entry the room of the longest. */
function legendRows(named, width) {
  const widest = Math.max(1, ...named.map((trace) => plainName(trace.name).length)) * LETTER + 44;
  return Math.ceil(named.length / Math.max(1, Math.floor((width - 60) / widest)));
}

/** Inert text, cut to a number of letters. */
function shortened(text, letters) {
  const most = Math.max(8, Math.floor(letters));
  const plain = plainName(text);
  return text.includes("<br>") || plain.length <= most ? text : inert(plain.slice(0, most - 1) + "…");
}

/** An annotation; the heading of a panel is cut to its width. */
function styledAnnotation(annotation, grid, width) {
  if (grid && / domain$/.test(annotation.xref || "")) {
    const text = shortened(annotation.text || "", (width / grid.columns - GAP.x) / LETTER);
    if (text !== annotation.text) annotation = { ...annotation, text, hovertext: annotation.text };
  }
  return { showarrow: false, ...annotation, font: { size: 12, color: ink("ink"), ...annotation.font } };
}

function notice(text) {
  return { text, xref: "paper", yref: "paper", x: 0.5, y: 0.5, showarrow: false, font: { size: 14, color: ink("muted") } };
}

function chartHeight(figure, variant, rows) {
  const width = NARROW.matches ? "narrow" : "wide";
  const tall = figure.height && (!NARROW.matches || figure.height > TALL); // a long list of rows needs its height
  if (!variant.layout.grid) return tall ? figure.height : figure.opening ? OPENING[width] : PLAIN[width];
  const own = figure.height && !NARROW.matches ? figure.height / (variant.layout.grid.rows || 1) : PANEL[width];
  return own * rows + 60;
}

/** Height at which the opening chart is as tall as the cards beside it; 0 where nothing stands beside it. */
function openingRoom(figure) {
  const facts = figure.opening && !NARROW.matches && !state.paper && document.querySelector(".facts");
  if (!facts) return 0;
  const span = (parts) => parts[parts.length - 1].getBoundingClientRect().bottom - parts[0].getBoundingClientRect().top;
  const parts = [...figure.root.children].filter((part) => part.offsetHeight);
  const data = figure.root.querySelector("details.data");
  const unfolded = data.open ? data.offsetHeight - data.querySelector("summary").offsetHeight : 0;
  const around = figure.root.getBoundingClientRect().top - parts[0].getBoundingClientRect().top; // the card's padding
  const others = span(parts) - unfolded - figure.chart.offsetHeight - 2 * around;
  return Math.min(ROOM, Math.floor(span([...facts.children]) - others));
}

function notAboveZero(traces) {
  const counted = (values) => (Array.isArray(values) ? values.filter((y) => typeof y === "number" && y <= 0).length : 0);
  return traces.reduce((sum, trace) => sum + (trace.type === "heatmap" ? 0 : counted(trace.y)), 0);
}

const CONFIG = { displayModeBar: false, responsive: true, showTips: false, displaylogo: false, doubleClick: "reset" };

/** Draw into an element, or draw again what has changed. */
async function draw(element, picture) {
  await withPlotly();
  element.style.minHeight = picture.height + "px";
  // drawn for another width: Plotly would keep room for colour bars that now lie elsewhere, until no panel is left
  if (element.data && element.drawnNarrow !== NARROW.matches) Plotly.purge(element);
  element.drawnNarrow = NARROW.matches;
  return Plotly.react(element, picture.data, picture.layout, CONFIG);
}
