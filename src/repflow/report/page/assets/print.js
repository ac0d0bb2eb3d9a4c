// Printing: light, as wide as paper, every figure drawn that is not folded away.

const PAPER = 660; // pixels of a sheet's width between its margins

/** Unpack what will be printed while nothing else is to do: there is no time for it once printing has begun. */
function prepareForPrint() {
  const later = window.requestIdleCallback || ((action) => setTimeout(action, 500));
  later(() => figures.filter(isOpen).forEach(variantData));
}

/** Whether no fold hides a figure. */
function isOpen(figure) {
  return !figure.root.parentElement.closest("details:not([open])");
}

function addPrinting() {
  let theme = state.theme;
  const redrawAll = () => {
    figures.filter(isOpen).forEach((figure) => {
      figure.stale = true;
      redraw(figure);
    });
  };
  window.addEventListener("beforeprint", () => {
    theme = state.theme;
    state.paper = PAPER;
    applyTheme("light");
    redrawAll();
  });
  window.addEventListener("afterprint", () => {
    state.paper = null;
    applyTheme(theme);
    redrawAll();
  });
  whenIdle.push(prepareForPrint);
}
