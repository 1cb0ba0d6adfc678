"""bench/chart.py: a chart of fractions of the ceiling, Sheaf beside its peers, from JSON to SVG.

  sheaf bench all --json > bench.json
  bench/peers/run_peers.sh --json > peers.json
  python3 bench/chart.py bench.json --peers peers.json --output docs/performance.svg

Where both files have a case, the peers' file counts for all bars of it, since those were measured in turn.
"""
import argparse
import json
import sys
from xml.sax.saxutils import escape

# Which cases are shown, in order, and what they are called.
CASES = [
  ("lookup-f32-D128-V10M-uniform", "lookup, 128 x f32, 10 M rows"),
  ("bag_sum-f32-D64-L20-V1M-uniform", "bag sum, 64 x f32, 20 rows"),
  ("bag_mean-f32-D64-L20-V1M-uniform", "bag mean, 64 x f32, 20 rows"),
  ("weighted-f32-D64-L20-V1M-uniform", "weighted bag sum, 64 x f32, 20 rows"),
  ("bag_max-f32-D64-L80-V1M-uniform", "bag max, 64 x f32, 80 rows"),
  ("bag_sum-f32-D128-L80-V1M-1.05", "bag sum, 128 x f32, 80 rows, skewed"),
  ("bag_sum-f32-D128-L80-V10M-uniform", "bag sum, 128 x f32, 80 rows, 10 M rows"),
  ("bag_sum-f16-D128-L20-V1M-uniform", "bag sum, 128 x f16, 20 rows"),
  ("bag_sum-int8-D128-L20-V1M-uniform", "bag sum, 128 x int8, 20 rows"),
  ("bag_sum_backward-f32-D128-L20-V1M-uniform", "bag sum backward, 128 x f32"),
  ("bag_sum_backward-f32-D128-L20-V1M-1.05", "bag sum backward, 128 x f32, skewed"),
  ("segment_sum-f32-D64-N1M-S62500-uniform", "segment sum, sorted, 64 x f32"),
  ("segment_sum-f32-D64-N1M-S62500-1.05", "segment sum, sorted, skewed"),
  ("unsorted_segment_sum-f32-D64-N1M-S62500-uniform", "segment sum, unsorted, 64 x f32"),
]
SERIES = [("Sheaf", "#0b6e4f"), ("PyTorch", "#d1633c"), ("FBGEMM", "#7a8ba8")]
CEILING_WORDS = {"gather": "rows at random places", "update": "rows updated at random places", "read": "reading",
                 "copy": "copying"}
WIDTH, LEFT, RIGHT, TOP, BAR, GAP = 860, 290, 60, 92, 11, 10
MOST = 1.25  # where the axis ends


def best_of(peers, library):
  """The largest fraction among a library's ways of doing a case, or None."""
  found = [peer["fraction"] for name, peer in peers.items() if name.startswith(library) and peer.get("fraction")]
  return max(found, default=None)


def collect(bench, peers, threads):
  """Rows of (label, ceiling, {series: fraction})."""
  def by_case(report):
    return {r["case"]: r for r in report["results"] if r["threads"] == threads and r.get("fraction")} if report else {}
  ours, compared, rows = by_case(bench), by_case(peers), []
  for case, label in CASES:
    result = compared.get(case) or ours.get(case)
    if result:
      others = result.get("peers", {})
      values = {"Sheaf": result["fraction"], "PyTorch": best_of(others, "torch"), "FBGEMM": best_of(others, "fbgemm")}
      rows.append((label, result["ceiling"], {name: value for name, value in values.items() if value}))
  return rows


# ---- Drawing ---------------------------------------------------------------------------------------------------------


def text(x, y, words, size=12, anchor="start", fill="#1f2933", weight="normal"):
  return (f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}" fill="{fill}" '
          f'font-weight="{weight}">{escape(words)}</text>')


def box(x, y, width, height, fill):
  return f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" rx="1.5" fill="{fill}"/>'


def at(fraction):
  return LEFT + (WIDTH - LEFT - RIGHT) * min(fraction, MOST) / MOST


def axis(bottom):
  lines = []
  for step in range(6):
    value = step / 4
    strong = value == 1
    lines.append(f'<line x1="{at(value):.1f}" y1="{TOP - 6}" x2="{at(value):.1f}" y2="{bottom}" '
                 f'stroke="{"#1f2933" if strong else "#d9dee5"}" stroke-width="{1.4 if strong else 1}"/>')
    lines.append(text(at(value), bottom + 16, f"{value:g}", 11, "middle", "#52606d"))
  return lines + [text(at(1), TOP - 12, "the machine's own speed", 11, "middle", "#1f2933")]


def legend(names):
  parts, x = [], LEFT
  for name, colour in SERIES:
    if name in names:
      parts += [box(x, 52, 11, 11, colour), text(x + 16, 62, name, 12)]
      x += 34 + 8 * len(name)
  return parts


def bars(rows):
  parts, y = [], TOP
  for label, ceiling, values in rows:
    height = BAR * len(values)
    parts += [text(LEFT - 10, y + height / 2 + (0 if height > BAR else 4), label, 12, "end"),
              text(LEFT - 10, y + height / 2 + 12, f"of {CEILING_WORDS.get(ceiling, ceiling)}", 9.5, "end", "#7b8794")
              if height > BAR else ""]
    for name, colour in SERIES:
      if name in values:
        parts += [box(LEFT, y, at(values[name]) - LEFT, BAR - 1.5, colour),
                  text(at(values[name]) + 4, y + BAR - 2.5, f"{values[name]:.2f}", 9.5, fill="#52606d")]
        y += BAR
    y += GAP
  return parts, y


def draw(rows, machine, threads):
  parts, bottom = bars(rows)
  names = {name for _, _, values in rows for name in values}
  count = "one thread" if threads == 1 else f"{threads} threads"
  what = ", ".join(str(word) for word in (machine.get("cpu"), machine.get("date", "")[:10],
                                          f"Sheaf {machine.get('version')}") if word)
  head = [text(20, 28, f"Speed as a fraction of the memory bandwidth measured in the same run, {count}", 15,
               weight="600"), text(20, 45, what, 11, fill="#52606d")]
  return "\n".join([f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {bottom + 28}" '
                    f'width="{WIDTH}" height="{bottom + 28}" font-family="system-ui, sans-serif" role="img" '
                    f'aria-label="Fractions of memory bandwidth, {", ".join(sorted(names))}">',
                    f'<rect width="{WIDTH}" height="{bottom + 28}" rx="6" fill="#ffffff"/>', *head, *legend(names),
                    *axis(bottom), *[part for part in parts if part], "</svg>", ""])


def load(path):
  with open(path, encoding="utf-8") as file:
    return json.load(file)


def main():
  parser = argparse.ArgumentParser(description="Draws fractions of the ceiling from the JSON of `sheaf bench`.")
  parser.add_argument("bench", help="JSON of `sheaf bench all --json`")
  parser.add_argument("--peers", help="JSON of bench/peers/compare.py --json")
  parser.add_argument("--threads", type=int, default=1, help="which results (default 1)")
  parser.add_argument("--output", default="docs/performance.svg")
  options = parser.parse_args()
  bench, peers = load(options.bench), load(options.peers) if options.peers else None
  rows = collect(bench, peers, options.threads)
  if not rows:
    sys.exit(f"chart.py: none of the charted cases was run with {options.threads} threads")
  with open(options.output, "w", encoding="utf-8") as file:
    file.write(draw(rows, bench["machine"], options.threads))
  print(f"{options.output}: {len(rows)} cases")


if __name__ == "__main__":
  main()
