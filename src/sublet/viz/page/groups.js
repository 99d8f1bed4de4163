// Groups of nodes: by op, and by scope, the part of the network known from names or from the exporter.

// A colour mode by a word of each placement: the groups with the most bytes have separate colours.
function groupMode(model, name, wordOf) {
  const totals = new Map();
  const { placement, placements } = model;
  const words = Array.from(placements.name, (_, place) => wordOf(place));
  words.forEach((word, place) => totals.set(word, (totals.get(word) ?? 0) + Number(placements.nbytes[place])));
  const order = [...totals.keys()].filter(Boolean).sort((a, b) => totals.get(b) - totals.get(a) || (a < b ? -1 : 1));
  if (order.length < 2) return [];
  const tone = new Map(order.slice(0, QUALITATIVE.length).map((word, k) => [word, k]));
  const legend = [...tone].map(([word, k]) => [k, word]);
  if (totals.size > tone.size) legend.push([QUALITATIVE.length, order.length > tone.size ? `${order.length - tone.size} others` : "inputs"]);
  return [{ name, colours: [...QUALITATIVE, "#b4bac4"].map(parse), legend, of: (i) => tone.get(words[placement[i]]) ?? QUALITATIVE.length }];
}

const groupModes = (model) => {
  const { word, op, scope } = model.placements;
  return [...groupMode(model, "by op", (place) => word[op[place]]), ...groupMode(model, "by scope", (place) => word[scope[place]])];
};

// Runs of points in one scope, as [begin, end, scope], for the strip under the map.
function scopeRuns(model) {
  const runs = [];
  model.pointScopes.forEach((scope, t) => {
    const last = runs.at(-1);
    if (last && last[2] === scope) last[1] = t + 1;
    else runs.push([t, t + 1, scope]);
  });
  return runs.filter(([, , scope]) => scope);
}

const scopeRows = (model) => (model.scopeRuns.length ? 1 : 0);

function drawScopes(context, panel, view, model, look) {
  context.textAlign = "center";
  context.textBaseline = "middle";
  const y = panel.y + panel.h + panel.axis;
  model.scopeRuns.forEach(([begin, end, scope], k) => {
    const x0 = Math.max(panel.x, atTime(panel, view, begin));
    const x1 = Math.min(panel.x + panel.w, atTime(panel, view, end));
    if (x1 <= x0) return;
    context.fillStyle = look.quiet;
    context.globalAlpha = k % 2 ? 0.1 : 0.22;
    context.fillRect(x0, y, Math.max(0.5, x1 - x0 - (x1 - x0 > 4 ? 1 : 0)), BAND_HEIGHT - 2);
    context.globalAlpha = 1;
    context.fillStyle = look.ink;
    if (x1 - x0 > 24) context.fillText(shortened(context, scope, x1 - x0 - 6), (x0 + x1) / 2, y + BAND_HEIGHT / 2 - 0.5);
  });
}
