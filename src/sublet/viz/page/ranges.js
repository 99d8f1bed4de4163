// Sliders over the dimensions of a plan over ranges. The page holds one map for each combination of the stops; the first
// map has the largest sizes.

function showRanges(model) {
  const block = document.getElementById("stops");
  if (!block) return;
  const dimensions = JSON.parse(atob(block.textContent));
  const form = document.getElementById("ranges");
  form.hidden = false;
  form.addEventListener("submit", (event) => event.preventDefault());
  const chosen = stopsAt(dimensions, shownSpot);
  const sliders = dimensions.map(([name, stops], number) => {
    const [label, input, output] = [el("label"), el("input", null, { type: "range", min: 0, max: stops.length - 1, step: 1 }), el("output")];
    input.value = chosen[number];
    input.disabled = stops.length === 1;
    const tell = () => {
      output.textContent = exact(stops[input.value]);
      input.setAttribute("aria-valuetext", `${name} = ${exact(stops[input.value])}`);
    };
    input.addEventListener("input", tell);
    input.addEventListener("change", () => {
      location.hash = `#point-${spotOf(dimensions, sliders.map((each) => Number(each.value)))}-${number}`;
    });
    tell();
    label.append(el("bdi", name), " ", input, " ", output);
    form.querySelector("div").append(label);
    return input;
  });
  const shape = dimensions.map(([name, stops], number) => `${name}=${exact(stops[chosen[number]])}`).join(", ");
  form.querySelector("p").textContent = `Shown: ${shape}, with ${sized(model.peak.exact)} live at the peak of this shape. The arena serves every shape; lower bound and verdict are of the largest sizes.`;
  addEventListener("hashchange", () => location.reload());
  if (sliderText) sliders[Number(sliderText)]?.focus();
}

// The positions of the sliders at a map, and the map at positions: the last dimension varies fastest, from its last stop.
function stopsAt(dimensions, spot) {
  let left = spot;
  return dimensions.toReversed().map(([, stops]) => {
    const back = left % stops.length;
    left = (left - back) / stops.length;
    return stops.length - 1 - back;
  }).reverse();
}

const spotOf = (dimensions, values) => dimensions.reduce((spot, [, stops], i) => spot * stops.length + stops.length - 1 - values[i], 0);
