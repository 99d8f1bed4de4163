// Arenas: each arena has separate addresses. Several arenas are stacked as bands of one map.

const arenasOf = (rows) => rows.map(([name, begin, bytes, bound, capacity]) => ({
  name, bytes, bound, capacity: Number(capacity), begin: Number(begin), end: Number(begin) + Math.max(Number(bytes), Number(bound)),
}));

// The arena containing an address of the map, or the nearest arena below.
const arenaAt = (model, a) => model.arenas.findLast((arena) => arena.begin <= a) ?? model.arenas[0];
const several = (model) => model.arenas.length > 1;

// An address relative to its arena; exact above 2^53 too, as a BigInt.
function ownAddress(model, a) {
  const { begin } = arenaAt(model, Number(a));
  return typeof a === "bigint" ? a - BigInt(begin) : a - begin;
}

// The suffix naming the plan of peak and curve, if several plans are drawn.
const whose = (model) => (model.others.length ? ` of ${model.label}` : "");

// The drawn plans: label, curve, and the plan's placements [from, until).
function plansOf(model) {
  const starts = [0, ...model.others.map(({ first }) => first), model.placements.name.length];
  return [{ label: model.label, curve: model.curve }, ...model.others.map(({ label, point, bytes }) => ({ label, curve: { point, bytes } }))]
    .map((plan, k) => ({ ...plan, from: starts[k], until: starts[k + 1] }));
}

// The live bytes of each plan at a time; `bytes` is the exact number for the first plan, if known.
const liveRows = (model, t, bytes) => plansOf(model).map(({ label, curve }, k) => [
  model.others.length ? `Live in ${label}` : "Live", sized(k === 0 && bytes !== undefined ? bytes : levelAt(curve, t)),
]);

// The arenas in one line: the sum of each plan's arenas, restricted to the planned values.
function arenasTold(model) {
  const plans = [model, ...model.others];
  const sizes = [model.figures.arena, ...model.others.map(({ arena }) => arena)].map(human);
  if (plans.length > 1) return plans.map(({ label }, k) => `${label} ${sizes[k]}`).join(", ");
  return `${several(model) ? "Arenas" : "Arena"} ${sizes[0]}${model.coverage ? " for the planned part" : ""}`;
}

// The cells of the header: the size of each arena. Changes are shown only between two plans of one arena each.
function arenaCells(model) {
  const first = Number(model.arenas[0].bytes);
  const paired = model.others.length === 1 && model.arenas.length === 2; // one arena each
  return model.arenas.map(({ name, bytes, bound, capacity }, k) => {
    const size = capacity >= 0 ? `${human(bytes)} of ${human(capacity)}` : human(bytes);
    const tight = Number(bytes) === Number(bound) && !model.coverage;
    const more = Number(bytes) - first;
    const change = more ? `, ${exact(Math.abs(more))} B ${more > 0 ? "more" : "less"}` : ", as much";
    const refused = model.figures.lowerBound === null;
    const note = refused ? "no lower bound" : tight ? "its lower bound" : `lower bound ${human(bound)}`;
    return [model.others.length ? `Arena of ${name}` : name, size, `${note}${paired && k ? change : ""}`];
  });
}

const inArena = (model, a) => (several(model) ? ` in ${arenaAt(model, Number(a)).name}` : "");

function addressAxis(context, panel, view, model, look) {
  const whole = { low: view.a0, high: view.a1 };
  const count = Math.max(2, panel.h / 64);
  if (!several(model)) return byteAxis(context, panel, whole, 0, Infinity, count, look);
  for (const arena of model.arenas) byteAxis(context, panel, whole, arena.begin, arena.end, count, look);
  return undefined;
}

// The end of each arena (solid) and its lower bound (dashed): one line if both are equal.
// Returns a function that draws the labels, to be called last.
function drawArenas(context, panel, view, model, look) {
  const toY = (a) => atByte(panel, view, a);
  const end = panel.x + panel.w - 6;
  const told = [];
  for (const arena of model.arenas) {
    const tight = Number(arena.bytes) === Number(arena.bound) && !model.coverage;
    const top = arena.begin + Number(arena.bytes);
    const limit = arena.begin + Number(arena.bound);
    const room = arena.capacity >= 0 ? ` of ${human(arena.capacity)}` : "";
    if (levelLine(context, panel, toY(top), look.arena, [])) {
      const size = `${human(arena.bytes)}${room}`;
      const text = several(model) ? `${shortened(context, arena.name, panel.w * 0.35)}  ${size}${tight ? " = its lower bound" : ""}` : `arena${tight ? " = lower bound" : ""}  ${size}`;
      told.push([text, end, toY(top) - 10, tight ? look.bound : look.arena]);
    }
    if (model.figures.lowerBound !== null && levelLine(context, panel, toY(limit), look.bound, [6, 4]) && !tight) {
      told.push([`lower bound  ${human(arena.bound)}`, end, toY(limit) + 11, look.bound]);
    }
    if (arena.begin > 0) levelLine(context, panel, toY(arena.begin), look.frame, []);
    const budget = toY(arena.begin + Number(model.budget));
    if (hasBudgetLine(model) && levelLine(context, panel, budget, look.peak, [2, 3])) {
      told.push([`budget  ${human(model.budget)}`, panel.x + 8, budget - 10, look.peak, "left"]);
    }
  }
  return () => told.forEach(([text, x, y, colour, align]) => plate(context, text, x, y, colour, look, align ?? "right"));
}

// A budget is a line if one arena a plan is drawn and the budget is at most twice as high; else a figure.
const hasBudgetLine = (model) => model.budget !== null && (!several(model) || model.others.length > 0) && Number(model.budget) <= 2 * model.height;
