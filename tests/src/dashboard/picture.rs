//! Draws a dashboard as one SVG with Grafana's grid, titles, axes, legends and units, from the same
//! queries.
//!
//! The drawing shows whether the panels are understandable, whether legends can be distinguished,
//! and whether units are right. Colours and shapes differ from Grafana's.

use std::fmt::Write as _;

use regex_lite::Regex;
use serde_json::Value;

use super::format::number;
use super::run::Shown;
use super::{Dashboard, Kind};
use crate::demo::chart::{Panel as Plot, Vertical, escape, nice_step};
use crate::prometheus::{INTERVAL, Series};

/// The width of a drawing that a page shows without scaling it, px.
pub const OF_PAGE: f64 = 920.0;
/// The width of a drawing of a whole dashboard, px.
pub const OF_SCREEN: f64 = 1_480.0;
/// The height of a unit of Grafana's grid, px.
const UNIT: f64 = 31.0;
const GAP: f64 = 8.0;
const TOP: f64 = 62.0;
/// The colours of names, on light and on dark panels. Colours repeat if a picture has more names.
const COLOURS: [(&str, &str); 10] = [
    ("#0072b2", "#56b4e9"),
    ("#d55e00", "#ff9a4d"),
    ("#009e73", "#2bc493"),
    ("#a8558a", "#d693ba"),
    ("#b87700", "#f0b840"),
    ("#2f8fc9", "#9ad4f5"),
    ("#8250df", "#b392f0"),
    ("#7f7f7f", "#a8a8a8"),
    ("#a40e26", "#ff7b72"),
    ("#1b7c83", "#4fd0d8"),
];

/// Draws the results of [`super::run::run`]. `chosen` is the text of the variables' values, and
/// `whole` is the width of the drawing.
pub fn svg(
    dashboard: &Dashboard,
    shown: &[Shown],
    chosen: &str,
    span: (f64, f64),
    whole: f64,
) -> String {
    let above = shown.iter().map(|s| s.panel.grid()[1]);
    let above = above.fold(f64::INFINITY, f64::min);
    let bottom = |s: &Shown| {
        let [_, y, _, h] = s.panel.grid();
        y + h - above
    };
    let height = TOP + UNIT * shown.iter().map(bottom).fold(0.0, f64::max) + GAP;
    let mut out = format!(
        r#"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {whole} {height}" role="img" aria-label="{title}"><style>{CSS}{colours}</style><rect class="page" width="{whole}" height="{height}"/><text class="head" x="16" y="30">{title}</text><text class="tick" x="16" y="50">{chosen}</text>"#,
        colours = colours(),
        title = escape(&dashboard.title),
        chosen = escape(chosen),
    );
    // A name has one colour in all panels, as in Grafana's palette by name.
    let mut names = Vec::new();
    for shown in shown {
        let [x, y, w, h] = shown.panel.grid();
        let (part, parts) = shown.part;
        let w = if parts > 1 { 24.0 / parts as f64 } else { w };
        let x = if parts > 1 { w * part as f64 } else { x };
        let column = (whole - GAP) / 24.0;
        let (left, top) = (GAP + x * column, TOP + (y - above) * UNIT);
        let (width, height) = (w * column - GAP, h * UNIT - GAP);
        if shown.panel.kind == Kind::Row {
            let _ = write!(
                out,
                r#"<text class="row" x="{left:.0}" y="{:.0}">{}</text>"#,
                top + 19.0,
                escape(&shown.title)
            );
            continue;
        }
        let _ = write!(
            out,
            r#"<g transform="translate({left:.1} {top:.1})"><rect class="panel" width="{width:.1}" height="{height:.1}" rx="3"/><text class="title" x="10" y="19">{}</text>"#,
            escape(&shown.title)
        );
        match shown.panel.kind {
            Kind::Stat => stat(&mut out, shown, width, height),
            Kind::Table => table(&mut out, shown, width),
            Kind::TimeSeries | Kind::Row => {
                lines(&mut out, shown, (width, height), span, &mut names);
            }
        }
        out.push_str("</g>");
    }
    out.push_str("</svg>\n");
    out
}

const CSS: &str = r#"
:root{--page:#f4f5f7;--panel:#fff;--edge:#dfe3e8;--fg:#24292f;--muted:#57606a;--grid:#e7eaee;--axis:#8c959f;
--good:#1a7f37;--warn:#bc4c00;--bad:#cf222e}
@media(prefers-color-scheme:dark){:root{--page:#0d1117;--panel:#151b23;--edge:#3d444d;--fg:#e6edf3;--muted:#9198a1;--grid:#2a313a;--axis:#656c76;
--good:#3fb950;--warn:#e3893c;--bad:#ff7b72}}
text{font-family:"DejaVu Sans",system-ui,sans-serif;font-size:12px;fill:var(--fg)}
.page{fill:var(--page)} .panel{fill:var(--panel);stroke:var(--edge)}
.head{font-size:18px;font-weight:600} .row{font-size:13px;font-weight:600}
.title{font-size:13px;font-weight:600}
.tick{fill:var(--muted);font-size:12px} .grid{stroke:var(--grid)} .axis{stroke:var(--axis)}
.line{fill:none;stroke-width:1.5;stroke-linejoin:round;stroke-linecap:round}
.dash{stroke-dasharray:6 5}
.big{font-size:28px;font-weight:600} .good{fill:var(--good)} .warn{fill:var(--warn)} .bad{fill:var(--bad)}
.none{fill:var(--muted)}
"#;

/// Returns the CSS rules of the classes `c0`, `c1`, ..., which give the lines and areas of each
/// name their colour.
fn colours() -> String {
    let (mut light, mut dark) = (String::new(), String::new());
    for (at, (on_light, on_dark)) in COLOURS.iter().enumerate() {
        let _ = writeln!(light, ".c{at}{{stroke:{on_light};color:{on_light}}}");
        let _ = writeln!(dark, ".c{at}{{stroke:{on_dark};color:{on_dark}}}");
    }
    format!("{light}@media(prefers-color-scheme:dark){{{dark}}}\n.area{{fill:currentColor}}\n")
}

/// Returns a panel's unit and number of decimals.
fn unit(shown: &Shown) -> (&str, Option<u64>) {
    let defaults = &shown.panel.json["fieldConfig"]["defaults"];
    (
        defaults["unit"].as_str().unwrap_or("short"),
        defaults["decimals"].as_u64(),
    )
}

fn stat(out: &mut String, shown: &Shown, width: f64, height: f64) {
    let (unit, decimals) = unit(shown);
    let defaults = &shown.panel.json["fieldConfig"]["defaults"];
    let value = shown
        .answers
        .iter()
        .flatten()
        .flat_map(|s| &s.points)
        .last();
    let steps = defaults["thresholds"]["steps"].as_array();
    let reached = |v: f64| {
        let steps = steps.into_iter().flatten();
        let mut reached = steps.filter(|s| s["value"].as_f64().is_none_or(|at| v >= at));
        match reached.next_back().and_then(|s| s["color"].as_str()) {
            Some("green") => "good",
            Some("orange") => "warn",
            Some("red") => "bad",
            _ => "",
        }
    };
    let (text, class) = match value {
        Some(&(_, v)) => (number(v, unit, decimals), reached(v)),
        None => {
            let none = defaults["noValue"].as_str().unwrap_or("No data");
            (none.to_owned(), "none")
        }
    };
    let _ = write!(
        out,
        r#"<text class="big {class}" x="{:.0}" y="{:.0}" text-anchor="middle">{}</text>"#,
        width / 2.0,
        height / 2.0 + 20.0,
        escape(&text)
    );
}

fn table(out: &mut String, shown: &Shown, width: f64) {
    // The code follows the panel's transformations. The table has one row for each value of the
    // joined label, or for each series.
    let organize = shown.panel.json["transformations"].as_array();
    let renames = organize
        .and_then(|all| all.iter().find(|t| t["id"] == "organize"))
        .map(|t| &t["options"]["renameByName"]);
    let renamed = |label: &str| {
        let name = renames.and_then(|r| r[label].as_str());
        name.unwrap_or(label).to_owned()
    };
    let mut heads: Vec<String> = Vec::new();
    let mut rows: Vec<Vec<String>> = Vec::new();
    let all = shown.answers.iter().flatten();
    let mut labels: Vec<&Vec<String>> = Vec::new();
    let keys: Vec<Vec<String>> = all.map(|s| s.labels.values().cloned().collect()).collect();
    for key in &keys {
        if !labels.contains(&key) {
            labels.push(key);
        }
    }
    if let Some(first) = shown.answers.iter().flatten().next() {
        heads.extend(first.labels.keys().map(|label| renamed(label)));
    }
    heads.extend(shown.panel.targets.iter().map(|t| t.legend.clone()));
    let overrides = shown.panel.json["fieldConfig"]["overrides"].as_array();
    let unit = |column: &str| {
        let of = overrides
            .into_iter()
            .flatten()
            .filter(|o| o["matcher"]["options"] == column);
        let mut units = of.flat_map(|o| o["properties"].as_array().into_iter().flatten());
        let unit = units.find(|p| p["id"] == "unit");
        unit.and_then(|p| p["value"].as_str()).unwrap_or("short")
    };
    for key in labels {
        let mut row = key.clone();
        for (target, answer) in shown.panel.targets.iter().zip(&shown.answers) {
            let found = answer.iter().find(|s| s.labels.values().eq(key));
            let value = found.and_then(|s| s.points.last());
            row.push(value.map_or_else(String::new, |v| number(v.1, unit(&target.legend), None)));
        }
        rows.push(row);
    }
    let step = (width - 20.0) / heads.len().max(1) as f64;
    for (at, row) in std::iter::once(&heads).chain(&rows).enumerate() {
        let y = 44.0 + 21.0 * at as f64;
        for (column, cell) in row.iter().enumerate() {
            let class = if at == 0 { "tick" } else { "cell" };
            let x = 10.0 + step * column as f64;
            let _ = write!(
                out,
                r#"<text class="{class}" x="{x:.0}" y="{y:.0}">{}</text>"#,
                escape(cell)
            );
        }
        let line = y + 6.0;
        let _ = write!(
            out,
            r#"<line class="grid" x1="10" x2="{:.0}" y1="{line:.0}" y2="{line:.0}"/>"#,
            width - 10.0
        );
    }
}

fn lines(
    out: &mut String,
    shown: &Shown,
    (width, height): (f64, f64),
    span: (f64, f64),
    names: &mut Vec<String>,
) {
    let (unit, decimals) = unit(shown);
    let custom = &shown.panel.json["fieldConfig"]["defaults"]["custom"];
    let stacked = custom["stacking"]["mode"] == "normal";
    let log = custom["scaleDistribution"]["type"] == "log";
    let named = curves(shown);

    let seconds = span.1 - span.0;
    // Points are placed by scrape from the start, and stacked if the panel stacks.
    let step = INTERVAL.as_secs_f64();
    let mut base = vec![0.0; (seconds / step) as usize + 2];
    let mut drawn: Vec<Vec<(f64, Option<f64>)>> = Vec::new();
    for Curve { series, .. } in &named {
        let mut curve = vec![None; base.len()];
        for &(t, value) in &series.points {
            let at = (((t - span.0) / step).round().max(0.0) as usize).min(base.len() - 1);
            if value.is_finite() {
                base[at] += value;
                curve[at] = Some(if stacked { base[at] } else { value });
            }
        }
        let at = curve.into_iter().enumerate();
        drawn.push(at.map(|(i, v)| (i as f64 * step, v)).collect());
    }
    let values = || drawn.iter().flatten().filter_map(|p| p.1);
    let highest = values().fold(0.0, f64::max);
    let fixed = shown.panel.json["fieldConfig"]["defaults"]["max"].as_f64();
    let highest = fixed.unwrap_or(if highest > 0.0 { highest } else { 1.0 });
    let vertical = if log {
        let lowest = values().filter(|v| *v > 0.0).fold(highest, f64::min);
        Vertical::Log(
            10f64.powf(lowest.log10().floor()),
            10f64.powf(highest.log10().ceil()).max(lowest * 10.0),
        )
    } else {
        let step = nice_step(highest / 4.0);
        Vertical::Linear((highest / step).ceil() * step)
    };
    let layout = legend_layout(&named, width);
    let legend_rows = layout.last().map_or(1, |l| l.1 + 1);
    let plot = Plot {
        x: 72.0,
        y: 32.0,
        width: width - 88.0,
        height: height - 62.0 - 15.0 * legend_rows as f64,
        seconds,
        vertical,
    };
    plot.value_axis(out, |v| {
        number(v, unit, decimals.filter(|_| unit == "none"))
    });
    plot.time_axis(out, nice_step(seconds / 6.0));
    for Curve { name, .. } in &named {
        if !names.contains(name) {
            names.push(name.clone());
        }
    }
    for (at, (curve, points)) in named.iter().zip(&drawn).enumerate().rev() {
        let Curve { name, .. } = curve;
        let colour = names.iter().position(|n| n == name).unwrap_or_default();
        let colour = colour % COLOURS.len();
        let class = if curve.is_dashed { "dash" } else { "" };
        let _ = write!(out, r#"<g class="c{colour}">"#);
        if stacked {
            let known = points.iter().filter_map(|p| Some((p.0, p.1?)));
            let known: Vec<(f64, f64)> = known.collect();
            plot.area(out, "", &known);
        }
        plot.line(out, class, points.iter().copied());
        out.push_str("</g>");
        if !curve.is_in_legend {
            continue;
        }
        let (x, row) = layout[at];
        let y = height - 9.0 - 15.0 * (legend_rows - 1 - row) as f64;
        let _ = write!(
            out,
            r#"<line class="line {class} c{colour}" x1="{x:.0}" x2="{:.0}" y1="{:.0}" y2="{:.0}"/><text class="tick" x="{:.0}" y="{y:.0}">{}</text>"#,
            x + 14.0,
            y - 3.5,
            y - 3.5,
            x + 19.0,
            escape(name)
        );
    }
    if named.is_empty() {
        let _ = write!(
            out,
            r#"<text class="tick" x="{:.0}" y="{:.0}" text-anchor="middle">No data</text>"#,
            width / 2.0,
            height / 2.0
        );
    }
}

/// A series of a panel, in the style of the panel's overrides.
pub(crate) struct Curve<'a> {
    /// The name in the legend.
    pub(crate) name: String,
    series: &'a Series,
    is_dashed: bool,
    /// Whether the series is in the legend.
    pub(crate) is_in_legend: bool,
}

/// Returns the series of a panel that have a number, sorted by name.
pub(crate) fn curves(shown: &Shown) -> Vec<Curve<'_>> {
    let overrides = shown.panel.json["fieldConfig"]["overrides"].as_array();
    let mut curves = Vec::new();
    for (at, name, series) in shown.by_target() {
        if !series.points.iter().any(|p| p.1.is_finite()) {
            continue;
        }
        let applies = |matcher: &Value| {
            let options = matcher["options"].as_str().unwrap_or_default();
            match matcher["id"].as_str() {
                Some("byFrameRefID") => shown.panel.json["targets"][at]["refId"] == options,
                Some("byRegexp") => Regex::new(options.trim_matches('/'))
                    .is_ok_and(|pattern| pattern.is_match(&name)),
                _ => false,
            }
        };
        let overrides = overrides.into_iter().flatten();
        let applied = overrides.filter(|o| applies(&o["matcher"]));
        let (mut is_dashed, mut is_in_legend) = (false, true);
        for p in applied.flat_map(|o| o["properties"].as_array().into_iter().flatten()) {
            is_dashed |= p["id"] == "custom.lineStyle";
            is_in_legend &= p["id"] != "custom.hideFrom" || p["value"]["legend"] != true;
        }
        curves.push(Curve {
            name,
            series,
            is_dashed,
            is_in_legend,
        });
    }
    // Curves that aren't in the legend come last, so that the indexes of the others are those of
    // the legend.
    curves.sort_by(|a, b| (!a.is_in_legend, &a.name).cmp(&(!b.is_in_legend, &b.name)));
    curves
}

/// Returns the left edge and the row of each name in the legend.
fn legend_layout(curves: &[Curve<'_>], width: f64) -> Vec<(f64, usize)> {
    let (mut x, mut row) = (10.0, 0);
    let place = |curve: &Curve<'_>| {
        let needed = 34.0 + 7.2 * curve.name.chars().count() as f64;
        if x + needed > width && x > 10.0 {
            (x, row) = (10.0, row + 1);
        }
        let at = (x, row);
        x += needed;
        at
    };
    let in_legend = curves.iter().filter(|curve| curve.is_in_legend);
    in_legend.map(place).collect()
}
