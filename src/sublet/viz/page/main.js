// Start of the page.

function recolour() {
  look = theme();
  colours = palette(model, state.mode, look);
  writeLegend(model, state.mode, colours, look);
  schedule();
}

const chooser = document.getElementById("mode");
modes.forEach((mode, i) => chooser.append(el("option", mode.name, { value: i })));
chooser.addEventListener("change", () => {
  state.mode = modes[Number(chooser.value)];
  recolour();
});
darkScheme.addEventListener("change", recolour);

foldButton.hidden = whole.others.length > 0 || !whole.bands.some((band) => !band.kept);
foldButton.addEventListener("click", () => fold(model === whole));
showFrontier();
showRanges(model);
writeHeader(model);
writeCoverage(model);
// On a narrow screen, the figures are folded to make room for the map.
const sums = document.getElementById("sums");
sums.querySelector("summary").textContent = `${arenasTold(model)}: figures and legend`;
const narrow = matchMedia("(max-width: 600px)");
const unfoldSums = () => {
  sums.open = !narrow.matches;
};
narrow.addEventListener("change", unfoldSums);
unfoldSums();
recolour();
clear();
// A new size empties the canvas: draw at once to avoid an empty frame.
new ResizeObserver(() => {
  fit();
  draw();
}).observe(stage);
fit();
draw();
requestAnimationFrame(() => setTimeout(() => {
  page.firstPaintMs = performance.now();
  page.ready = true;
}));

// For tests: the screen position of a tensor, and the visible range.
page.locate = (name) => {
  const i = model.piecesOf(model.placements.name.indexOf(name))[0];
  const box = stage.getBoundingClientRect();
  return {
    x: box.left + atTime(panels.map, state.view, (model.left[i] + model.right[i]) / 2),
    y: box.top + atByte(panels.map, state.view, (model.bottom[i] + model.top[i]) / 2),
  };
};
page.view = () => ({ ...state.view });
page.lit = (name) => model.placesOf.get(name).flatMap((place) => Array.from(model.piecesOf(place), (i) => lit?.[i] ?? 1));
page.band = (k) => {
  const band = model.bands[k];
  const box = stage.getBoundingClientRect();
  return {
    x: box.left + atTime(panels.map, state.view, (band.begin + band.end) / 2),
    y: box.top + bandTop(panels.map, band) + BAND_HEIGHT / 2,
  };
};
