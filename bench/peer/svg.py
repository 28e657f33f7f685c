"""A bar chart as SVG, without a plotting library: groups of bars with a whisker from minimum to maximum, and a line
for a bound where there is one."""
from xml.sax.saxutils import escape

COLOURS = ("#2a6f97", "#c1666b", "#7a9e7e")
WIDTH, HEIGHT, LEFT, TOP, BOTTOM = 380, 300, 56, 56, 44


def step_of(top):
    """The smallest of 1, 2, 5 x 10^n that gives at most eight lines up to `top`."""
    return min(m * 10.0 ** n for n in range(-6, 9) for m in (1, 2, 5) if top / (m * 10.0 ** n) <= 8)


def panel(x, title, unit, names, groups):
    """groups: [(label, [{"min", "median", "max"}, one for each name], bound or None)]"""
    top = 1.12 * max(max([s["max"] for s in bars] + ([bound] if bound else [])) for _, bars, bound in groups)
    base, inner = HEIGHT - BOTTOM, WIDTH - LEFT - 10
    y = lambda v: base - v / top * (base - TOP)
    out = [f'<text x="{x + LEFT}" y="{TOP - 14}" font-weight="bold">{escape(title)}, {escape(unit)}</text>']
    step, v = step_of(top), 0.0
    while v <= top:
        out.append(f'<line x1="{x + LEFT}" x2="{x + WIDTH - 10}" y1="{y(v):.1f}" y2="{y(v):.1f}" stroke="#ddd"/>'
                   f'<text x="{x + LEFT - 6}" y="{y(v) + 4:.1f}" text-anchor="end">{v:g}</text>')
        v += step
    wide = inner / len(groups)
    bar = min(46.0, wide * 0.8 / len(names))
    for g, (label, bars, bound) in enumerate(groups):
        middle = x + LEFT + (g + 0.5) * wide
        left = middle - bar * len(names) / 2
        for i, s in enumerate(bars):
            at, centre = left + i * bar, left + (i + 0.5) * bar
            out.append(f'<rect x="{at + 2:.1f}" y="{y(s["median"]):.1f}" width="{bar - 4:.1f}" '
                       f'height="{base - y(s["median"]):.1f}" fill="{COLOURS[i]}"/>'
                       f'<line x1="{centre:.1f}" x2="{centre:.1f}" y1="{y(s["min"]):.1f}" y2="{y(s["max"]):.1f}" '
                       f'stroke="#222"/>'
                       f'<text x="{centre:.1f}" y="{y(s["max"]) - 4:.1f}" text-anchor="middle">{s["median"]:.3g}</text>')
        if bound:
            out.append(f'<line x1="{left - 6:.1f}" x2="{left + bar * len(names) + 6:.1f}" y1="{y(bound):.1f}" '
                       f'y2="{y(bound):.1f}" stroke="#222" stroke-dasharray="5 3"/>')
        out.append(f'<text x="{middle:.1f}" y="{base + 16}" text-anchor="middle">{escape(label)}</text>')
    return out


def bars(path, title, names, panels, note):
    """Writes a chart of panels [(title, unit, groups)] side by side, the names of the bars below."""
    width = WIDTH * len(panels)
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{HEIGHT + 24}" '
           f'font-family="sans-serif" font-size="11">', f'<rect width="{width}" height="{HEIGHT + 24}" fill="white"/>',
           f'<text x="{LEFT}" y="20" font-size="14">{escape(title)}</text>']
    for i, (name, unit, groups) in enumerate(panels):
        out += panel(i * WIDTH, name, unit, names, groups)
    at = LEFT
    for i, name in enumerate(names):
        out.append(f'<rect x="{at}" y="{HEIGHT - 8}" width="11" height="11" fill="{COLOURS[i]}"/>'
                   f'<text x="{at + 16}" y="{HEIGHT + 2}">{escape(name)}</text>')
        at += 30 + 7 * len(name)
    out.append(f'<text x="{at}" y="{HEIGHT + 2}">{escape(note)}</text></svg>')
    with open(path, "w") as f:
        f.write("\n".join(out) + "\n")
