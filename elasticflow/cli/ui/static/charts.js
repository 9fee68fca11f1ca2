// Line charts of SVG: no library, so nothing comes from elsewhere.
const NS = "http://www.w3.org/2000/svg";
const WIDTH = 420, HEIGHT = 190, LEFT = 48, RIGHT = 8, TOP = 10, BOTTOM = 22;

export const COLOURS = 6;

// What turns the direction of writing, escaped: a name could look like another one.
export function harmless(text) {
  return String(text).replace(/[\u200e\u200f\u2028-\u202e\u2066-\u2069]/g, (found) => `\\u${found.charCodeAt(0).toString(16).padStart(4, "0")}`);
}

export function number(value) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "-";
  const size = Math.abs(value);
  if (Number.isInteger(value) && size < 1e15) return value.toLocaleString("en");
  if (size >= 1e5 || (size > 0 && size < 1e-3)) return value.toExponential(2);
  const text = value.toPrecision(4);
  return text.includes(".") ? text.replace(/\.?0+$/, "") : text;
}

function svg(tag, attributes, ...children) {
  const made = document.createElementNS(NS, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

// Round numbers between which the values lie.
function ticks(least, most, count) {
  if (most - least <= 1e-9 * Math.max(Math.abs(least), Math.abs(most))) [least, most] = least === 0 ? [0, 1] : [least - Math.abs(least) / 10, most + Math.abs(most) / 10];
  const rough = (most - least) / count, power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((each) => each * power).find((each) => each >= rough);
  const found = [];
  for (let n = Math.floor(least / step); n * step < most + step * 0.999; n++) found.push(Number((n * step).toPrecision(12)));
  return found;
}

// lines: [{name, points: [[x, y], ...]}], y null where there is none; steps: a value holds until the next one.
export function chart(title, lines, {xName = "step", steps = false, fromZero = false} = {}) {
  const shown = lines.map((line) => ({...line, points: line.points.filter(([, y]) => Number.isFinite(y))}));
  const all = shown.flatMap((line) => line.points);
  const figure = document.createElement("figure"), caption = document.createElement("figcaption");
  const told = document.createElement("span");
  caption.append(harmless(title), told);
  figure.append(caption);
  if (!all.length) {
    told.textContent = "nothing yet";
    return figure;
  }
  const ys = all.map(([, y]) => y), xs = all.map(([x]) => x);
  const least = (values) => values.reduce((a, b) => Math.min(a, b)), most = (values) => values.reduce((a, b) => Math.max(a, b));
  const vertical = ticks(fromZero ? Math.min(0, least(ys)) : least(ys), most(ys), 4);
  const x0 = least(xs), x1 = Math.max(most(xs), x0 + 1), y0 = vertical[0], y1 = vertical[vertical.length - 1];
  const px = (x) => LEFT + ((x - x0) / (x1 - x0)) * (WIDTH - LEFT - RIGHT);
  const py = (y) => HEIGHT - BOTTOM - ((y - y0) / (y1 - y0)) * (HEIGHT - TOP - BOTTOM);
  const words = shown.filter((line) => line.points.length).map((line) => {
    const [first, last] = [line.points[0], line.points[line.points.length - 1]];
    return `${line.name}: ${number(first[1])} at ${xName} ${number(first[0])}, ${number(last[1])} at ${number(last[0])}`;
  });
  const picture = svg("svg", {viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": `${title}. ${words.join("; ")}`});
  for (const y of vertical) {
    picture.append(svg("line", {class: "grid", x1: LEFT, x2: WIDTH - RIGHT, y1: py(y), y2: py(y)}));
    picture.append(svg("text", {x: LEFT - 5, y: py(y) + 4, "text-anchor": "end"}, number(y)));
  }
  for (const x of ticks(x0, x1, 4).filter((each) => each >= x0 && each <= x1))
    picture.append(svg("text", {x: px(x), y: HEIGHT - 6, "text-anchor": "middle"}, number(x)));
  shown.forEach((line, index) => {
    const parts = line.points.map(([x, y], n) => {
      const here = `${px(x).toFixed(1)} ${py(y).toFixed(1)}`;
      if (n === 0) return `M${here}`;
      return steps ? `L${px(x).toFixed(1)} ${py(line.points[n - 1][1]).toFixed(1)} L${here}` : `L${here}`;
    });
    if (line.points.length === 1) parts.push("h.01");
    picture.append(svg("path", {class: `line s${index % COLOURS}`, d: parts.join(" "), "stroke-linecap": "round"}));
  });
  const cursor = svg("line", {class: "cursor", y1: TOP, y2: HEIGHT - BOTTOM, visibility: "hidden"});
  picture.append(cursor);
  const newest = () => tell(told, shown, null, xName, steps);
  picture.addEventListener("pointermove", (event) => {
    const box = picture.getBoundingClientRect();
    const x = x0 + (((event.clientX - box.left) / box.width) * WIDTH - LEFT) / (WIDTH - LEFT - RIGHT) * (x1 - x0);
    const at = Math.min(x1, Math.max(x0, x));
    for (const name of ["x1", "x2"]) cursor.setAttribute(name, px(at));
    cursor.setAttribute("visibility", "visible");
    tell(told, shown, at, xName, steps);
  });
  picture.addEventListener("pointerleave", () => { cursor.setAttribute("visibility", "hidden"); newest(); });
  newest();
  figure.append(picture);
  return figure;
}

function nearest(points, x, steps) {
  if (!points.length) return null;
  if (x === null) return points[points.length - 1];
  let low = 0, high = points.length - 1;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (points[middle][0] <= x) low = middle; else high = middle - 1;
  }
  const next = points[low + 1];
  return !steps && next && next[0] - x < x - points[low][0] ? next : points[low];
}

function tell(told, lines, x, xName, steps) {
  told.replaceChildren(...lines.flatMap((line, index) => {
    const point = nearest(line.points, x, steps);
    if (!point) return [];
    const said = document.createElement("span");
    said.className = `k${index % COLOURS}`;
    said.textContent = `${lines.length > 1 ? `${harmless(line.name)} ` : ""}${number(point[1])}${x === null ? "" : ` (${xName} ${number(point[0])})`} `;
    return [said];
  }));
}
