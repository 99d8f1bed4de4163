// Arenas: each has addresses of its own. Several are drawn one above the other, as bands of one map.

const arenasOf = (rows) => rows.map(([name, begin, bytes, bound, capacity]) => ({
  name, bytes, bound, capacity: Number(capacity), begin: Number(begin), end: Number(begin) + Math.max(Number(bytes), Number(bound)),
}));

// The arena in which an address of the map lies, or the one below it.
const arenaAt = (model, a) => model.arenas.findLast((arena) => arena.begin <= a) ?? model.arenas[0];
const several = (model) => model.arenas.length > 1;

// Addresses as their arena counts them; exact also where a double is not.
function ownAddress(model, a) {
  const { begin } = arenaAt(model, Number(a));
  return typeof a === "bigint" ? a - BigInt(begin) : a - begin;
}

// The cells of the header: what each arena takes. A gap is not taken between several arenas and one.
function arenaCells(model) {
  const first = Number(model.arenas[0].bytes);
  return model.arenas.map(({ name, bytes, bound, capacity }, k) => {
    const size = capacity >= 0 ? `${human(bytes)} of ${human(capacity)}` : human(bytes);
    const tight = Number(bytes) === Number(bound) && !model.coverage;
    const more = Number(bytes) - first;
    const change = more ? `, ${exact(Math.abs(more))} B ${more > 0 ? "more" : "less"}` : ", as much";
    const note = tight ? "its lower bound" : `lower bound ${human(bound)}`;
    return [name, size, `${note}${model.others.length && k ? change : ""}`];
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

// The end of each arena (solid) and its lower bound (dashed): one line when no packing of what lies in it is smaller.
function drawArenas(context, panel, view, model, look) {
  const toY = (a) => atByte(panel, view, a);
  const end = panel.x + panel.w - 6;
  for (const arena of model.arenas) {
    const tight = Number(arena.bytes) === Number(arena.bound) && !model.coverage;
    const top = arena.begin + Number(arena.bytes);
    const limit = arena.begin + Number(arena.bound);
    const room = arena.capacity >= 0 ? ` of ${human(arena.capacity)}` : "";
    if (levelLine(context, panel, toY(top), look.arena, [])) {
      const size = `${human(arena.bytes)}${room}`;
      const text = several(model) ? `${arena.name}  ${size}${tight ? " = its lower bound" : ""}` : `arena${tight ? " = lower bound" : ""}  ${size}`;
      plate(context, text, end, toY(top) - 10, tight ? look.bound : look.arena, look, "right");
    }
    if (levelLine(context, panel, toY(limit), look.bound, [6, 4]) && !tight) {
      plate(context, `lower bound  ${human(arena.bound)}`, end, toY(limit) + 11, look.bound, look, "right");
    }
    if (arena.begin > 0) levelLine(context, panel, toY(arena.begin), look.frame, []);
    if (model.budget !== null && (!several(model) || model.others.length)) drawBudget(context, panel, toY(arena.begin + Number(model.budget)), model, look);
  }
}

// The budget, where it can be held against one arena.
function drawBudget(context, panel, y, model, look) {
  if (levelLine(context, panel, y, look.peak, [2, 3])) {
    plate(context, `budget  ${human(model.budget)}`, panel.x + 8, y - 10, look.peak, look, "left");
  }
}
