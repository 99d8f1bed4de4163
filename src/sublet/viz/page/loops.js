// Loops: body versions as bands on the time axis, folded or unfolded; values with several placements.

const BAND_HEIGHT = 15;
const BAND_ROWS = 3; // deeper loops are not drawn

const bandRows = (model) => model.bands.reduce((rows, band) => Math.min(BAND_ROWS, Math.max(rows, band.depth + 1)), 0);

// For each placement of a value with several placements, all placements in the order of their first iterations.
// Placements from `first` on belong to the second plan: equal names there are different values.
function ringsOf(names, rounds, first) {
  const places = new Map();
  names.forEach((name, place) => places.set(name, [...(places.get(name) ?? []), place]));
  const rings = new Map();
  const both = [...places.values()].flatMap((ring) => [ring.filter((place) => place < first), ring.filter((place) => place >= first)]);
  for (const ring of both) {
    if (ring.length > 1 && ring.some((place) => rounds[place])) ring.forEach((place) => rings.set(place, ring));
  }
  return { places, rings };
}

// The model with loops folded: of the body versions, only the first of the period remains.
function folded(model) {
  const hidden = model.bands
    .filter((band) => !band.kept)
    .flatMap(({ begin, end, exit }) => (exit < 0 ? [[begin, end]] : [[begin, end], [exit, exit + 1]]));
  const at = new Float64Array(model.duration + 1); // the new position of each point
  const gone = new Uint8Array(model.duration);
  for (const [begin, end] of hidden) gone.fill(1, begin, end);
  for (let t = 0; t < model.duration; t++) at[t + 1] = at[t] + 1 - gone[t];
  const squeezed = ({ left, right, ...others }) => {
    const kept = Array.from(left, (t, i) => i).filter((i) => at[left[i]] < at[right[i]]);
    const shorter = Object.entries(others).map(([key, values]) => [key, values.constructor.from(kept, (i) => values[i])]);
    return {
      left: Float64Array.from(kept, (i) => at[left[i]]),
      right: Float64Array.from(kept, (i) => at[right[i]]),
      ...Object.fromEntries(shorter),
    };
  };
  const { placement, left, right, bottom, top } = model;
  const pieces = squeezed({ placement, left, right, bottom, top });
  const steps = new Map(Array.from(model.curve.point, (t, i) => [at[t], model.curve.bytes[i]]));
  const shown = Array.from(gone.keys()).filter((t) => !gone[t]);
  const kept = (words) => (words.length ? shown.map((t) => words[t]) : words);
  const pointScopes = kept(model.pointScopes);
  return {
    ...model, ...pieces,
    pointOps: kept(model.pointOps),
    pointScopes,
    scopeRuns: scopeRuns({ pointScopes }),
    count: pieces.left.length,
    piecesOf: grouped(pieces.placement, model.placements.name.length),
    blockPieces: squeezed(model.blockPieces),
    curve: { point: Float64Array.from(steps.keys()), bytes: Float64Array.from(steps.values()) },
    points: shown.map((t) => model.points[t]),
    original: shown,
    duration: at[model.duration],
    peak: { ...model.peak, point: gone[model.peak.point] ? -1 : at[model.peak.point] },
    bands: model.bands
      .filter((band) => at[band.begin] < at[band.end])
      .map((band) => ({ ...band, begin: at[band.begin], end: at[band.end] })),
  };
}

const bandTop = (panel, band) => panel.y + panel.h + panel.axis + (scopeRows(whole) + band.depth) * BAND_HEIGHT;

function drawBands(context, panel, view, model, look) {
  context.textAlign = "center";
  context.textBaseline = "middle";
  for (const band of model.bands) {
    const x0 = Math.max(panel.x, atTime(panel, view, band.begin));
    const x1 = Math.min(panel.x + panel.w, atTime(panel, view, band.end));
    if (band.depth >= BAND_ROWS || x1 <= x0) continue;
    const y = bandTop(panel, band);
    context.fillStyle = band.repeats ? look.curve : look.quiet;
    context.globalAlpha = 0.2;
    context.fillRect(x0, y, Math.max(1, x1 - x0 - 1), BAND_HEIGHT - 2);
    context.globalAlpha = x1 - x0 > 6 ? 0.3 : 0.1;
    for (const t of [band.begin, band.end]) {
      if (t >= view.t0 && t <= view.t1) context.fillRect(Math.round(atTime(panel, view, t)), panel.y, 1, panel.h);
    }
    context.globalAlpha = 1;
    context.fillStyle = look.ink;
    context.fillText(shortened(context, band.label, x1 - x0 - 6), (x0 + x1) / 2, y + BAND_HEIGHT / 2);
  }
}

const bandAt = (model, panel, t, y) =>
  model.bands.find((band) => {
    const from = y - bandTop(panel, band);
    return band.depth < BAND_ROWS && band.begin <= t && t < band.end && from >= 0 && from < BAND_HEIGHT;
  });

// The placements of a value in the order of their iterations.
function showRing(panel, model, ring, list) {
  const { word, rounds, offset } = model.placements;
  const entries = ring.map((place) => [place, `at ${exact(ownAddress(model, offset[place]))}`, word[rounds[place]]]);
  section(panel, `Placements by iteration: ${exact(ring.length)}`, entries, list, "");
}

// The renamed loop-carried values (without own bytes), as a list of buttons.
function showPointers(panel, model, choosePointer) {
  if (!model.pointers.length) return;
  panel.append(el("h3", "Renamed loop-carried values, without bytes"));
  const list = el("ol");
  for (const pointer of model.pointers.slice(0, LISTED)) {
    const button = el("button", null, { type: "button", title: pointer.name });
    button.append(el("i"), el("b", pointer.name), el("span"), el("small", `bound to ${pointer.targets.join(" or ")}`));
    button.addEventListener("click", () => choosePointer(pointer));
    const item = el("li");
    item.append(button);
    list.append(item);
  }
  panel.append(list);
  if (model.pointers.length > LISTED) panel.append(el("p", `and ${exact(model.pointers.length - LISTED)} more`));
}

function showPointer(panel, model, colourOf, pointer, places, choose) {
  const { word, rounds, nbytes } = model.placements;
  panel.replaceChildren(el("h2", pointer.name), facts([["Tensor", pointer.spec], ["How", "renamed loop-carried value: no copy"]]));
  const entries = places.map((place) => [place, human(nbytes[place]), word[rounds[place]]]);
  const outside = pointer.targets.filter((name) => !model.placesOf.has(name)).join(", ");
  section(panel, "May be bound to", entries, (shown) => tensorList(model, colourOf, -1, shown, choose), "");
  if (outside) panel.append(el("p", `outside the arena: ${outside}`));
  panel.scrollTop = 0;
}
