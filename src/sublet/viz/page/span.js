// Sums over a span of time: a drag over the curve of live bytes chooses one.

// The values of a plan live, defined and dead within the points [begin, end).
function sumsOf(model, plan, begin, end) {
  const { left, right, placement, placements } = model;
  const alive = [];
  const made = new Map();
  const sums = { made: 0, madeBytes: 0, ended: 0, endedBytes: 0 };
  for (let i = 0; i < model.count; i++) {
    if (left[i] >= end || right[i] <= begin) continue;
    const place = placement[i];
    if (place < plan.from || place >= plan.until) continue;
    const bytes = Number(placements.nbytes[place]);
    alive.push(i);
    if (right[i] <= end) {
      sums.ended++;
      sums.endedBytes += bytes;
    }
    if (left[i] < begin) continue;
    sums.made++;
    sums.madeBytes += bytes;
    const op = model.placements.word[placements.op[place]] || "input";
    const [count, total] = made.get(op) ?? [0, 0];
    made.set(op, [count + 1, total + bytes]);
  }
  return { ...sums, alive, byOp: [...made].sort((a, b) => b[1][1] - a[1][1] || (a[0] < b[0] ? -1 : 1)), ...levels(plan.curve, begin, end) };
}

// The least, the most and the mean of the live bytes over [begin, end).
function levels(curve, begin, end) {
  let [least, most, area] = [Infinity, 0, 0];
  for (let i = Math.max(0, firstAfter(curve.point, begin) - 1); i < curve.point.length && curve.point[i] < end; i++) {
    const until = Math.min(end, i + 1 < curve.point.length ? curve.point[i + 1] : end);
    const length = until - Math.max(begin, curve.point[i]);
    if (length <= 0) continue;
    least = Math.min(least, curve.bytes[i]);
    most = Math.max(most, curve.bytes[i]);
    area += curve.bytes[i] * length;
  }
  return { least: Number.isFinite(least) ? least : 0, most, mean: area / (end - begin) };
}

function showSpan(panel, model, colourOf, begin, end, choose) {
  panel.replaceChildren(el("h2", "In this span"));
  panel.append(facts([
    ["From", pointName(model, begin)],
    ["To", pointName(model, end - 1)],
    ["Points", exact(end - begin)],
  ]));
  const size = (i) => model.top[i] - model.bottom[i];
  const alive = plansOf(model).flatMap((plan) => showSums(panel, model, plan, sumsOf(model, plan, begin, end)));
  alive.sort((i, j) => size(j) - size(i) || i - j);
  const entries = alive.map((i) => [model.placement[i], human(model.placements.nbytes[model.placement[i]]), aliveText(model, i)]);
  section(panel, "Live here, largest first", entries, (shown) => tensorList(model, colourOf, -1, shown, choose), "Nothing.");
  panel.scrollTop = 0;
}

// Shows the sums of one plan, below its name if several plans are drawn; returns the live rectangles.
function showSums(panel, model, plan, sums) {
  if (model.others.length) panel.append(el("h3", plan.label));
  panel.append(facts([
    ["Live at most", sized(Math.round(sums.most))],
    ["On average", human(Math.round(sums.mean))],
    ["At least", human(Math.round(sums.least))],
    ["Defined here", `${plural(sums.made, "tensor", "tensors")}, ${human(sums.madeBytes)}`],
    ["Ended here", `${plural(sums.ended, "tensor", "tensors")}, ${human(sums.endedBytes)}`],
  ]));
  if (sums.byOp.length) {
    panel.append(el("h3", model.others.length ? `Defined here in ${plan.label}, by op` : "Defined here, by op"));
    panel.append(facts(sums.byOp.slice(0, 12).map(([op, [count, bytes]]) => [op, `${human(bytes)} in ${plural(count, "tensor", "tensors")}`])));
  }
  return sums.alive;
}
