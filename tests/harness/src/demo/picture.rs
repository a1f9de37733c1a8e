//! The result in one picture, as a stand-alone SVG: response times and goodput, without Headgate
//! and with it.

use std::fmt::Write as _;

use super::chart::{Panel, Vertical, escape, nice_step, say_ms};
use super::palette;
use super::result::{DemoResult, Phase, TypeSetup};
use super::timeline::BIN;

const WIDTH: f64 = 920.0;
const HEIGHT: f64 = 500.0;
const COLUMN: f64 = 390.0;
const LATENCY: Vertical = Vertical::Log(1.0, 10_000.0);

/// Returns a stand-alone SVG file with the run's first `seconds` (the part that both phases share).
pub fn svg(result: &DemoResult) -> String {
    let mut out = format!(
        r#"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{}"><style>{}</style><rect width="{WIDTH}" height="{HEIGHT}" rx="8" fill="var(--bg)"/>"#,
        escape(&summary(result)),
        palette::CSS
    );
    body(&mut out, result);
    out.push_str("</svg>\n");
    out
}

/// Returns the drawing of [`svg`] for a page that already has the style rules.
pub fn inline(result: &DemoResult) -> String {
    let mut out = format!(
        r#"<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{}">"#,
        escape(&summary(result))
    );
    body(&mut out, result);
    out.push_str("</svg>");
    out
}

/// Returns the picture in words, for screen readers.
fn summary(result: &DemoResult) -> String {
    format!(
        "At {}x load, requests answered inside the objective: {:.0} per second without Headgate, \
         {:.0} with it.",
        result.setup.overload, result.without.goodput_rps, result.with.goodput_rps
    )
}

fn body(out: &mut String, result: &DemoResult) {
    let seconds = result.setup.counted_s.1;
    let highest = most_good(&result.without)
        .max(most_good(&result.with))
        .max(result.setup.capacity_rps);
    for (column, (title, phase)) in [
        ("Envoy alone", &result.without),
        ("Envoy with Headgate", &result.with),
    ]
    .into_iter()
    .enumerate()
    {
        let x = 62.0 + column as f64 * (COLUMN + 62.0);
        let _ = write!(out, r#"<text class="head" x="{x}" y="30">{title}</text>"#);
        let latency = Panel {
            x,
            y: 72.0,
            width: COLUMN,
            height: 210.0,
            seconds,
            vertical: LATENCY,
        };
        draw_latency(out, result, phase, &latency, column == 0);
        let step = nice_step(highest / 4.0);
        let top = (highest * 1.1 / step).ceil() * step;
        let goodput = Panel {
            y: 350.0,
            height: 92.0,
            vertical: Vertical::Linear(top),
            ..latency
        };
        draw_goodput(out, result, phase, &goodput);
    }
    legend(out, result);
}

fn draw_latency(
    out: &mut String,
    result: &DemoResult,
    phase: &Phase,
    panel: &Panel,
    name_overload: bool,
) {
    let _ = write!(
        out,
        r#"<text class="sub" x="{}" y="48">p90 response time of answered requests, by type</text>"#,
        panel.x
    );
    panel.value_axis(out, say_ms);
    panel.time_axis(out, 5.0);
    let overload = format!("{}× load from here", result.setup.overload);
    panel.event(
        out,
        result.setup.overload_at_s,
        if name_overload { &overload } else { "" },
    );
    for (i, kind) in phase.types.iter().enumerate() {
        let points = kind.curve.iter().map(|bin| (bin.at_s, bin.p90_ms));
        panel.line(
            out,
            &format!("t{}", i % 4),
            points.take_while(|(t, _)| *t < panel.seconds),
        );
    }
    let mut objectives: Vec<&TypeSetup> = result.setup.types.iter().collect();
    objectives.dedup_by_key(|kind| kind.slo_p90_ms.to_bits());
    for kind in objectives {
        panel.level_line(out, "limit", kind.slo_p90_ms, 0.0, panel.seconds);
        let _ = write!(
            out,
            r#"<text class="tick halo" x="{:.1}" y="{:.1}" text-anchor="end">objective {}</text>"#,
            panel.x + panel.width - 4.0,
            panel.level(kind.slo_p90_ms) - 5.0,
            say_ms(kind.slo_p90_ms)
        );
    }
}

fn draw_goodput(out: &mut String, result: &DemoResult, phase: &Phase, panel: &Panel) {
    let _ = write!(
        out,
        r#"<text class="sub" x="{}" y="{}">answered inside the objective: {:.0} requests/s in overload</text>"#,
        panel.x,
        panel.y - 16.0,
        phase.goodput_rps
    );
    panel.area(out, "answered", &good(phase, panel.seconds));
    panel.value_axis(out, |rps| format!("{rps:.0}"));
    panel.time_axis(out, 5.0);
    panel.event(out, result.setup.overload_at_s, "");
    panel.level_line(out, "limit", result.setup.capacity_rps, 0.0, panel.seconds);
    let _ = write!(
        out,
        r#"<text class="tick halo" x="{:.1}" y="{:.1}">capacity {:.0}/s</text>"#,
        panel.x + 4.0,
        panel.level(result.setup.capacity_rps) - 6.0,
        result.setup.capacity_rps
    );
}

fn legend(out: &mut String, result: &DemoResult) {
    let mut x = 62.0;
    // The texts are the type's name, its ratio of the requests, and its mean service time.
    for (i, kind) in result.setup.types.iter().enumerate() {
        let _ = write!(
            out,
            r#"<circle class="dot{}" cx="{:.1}" cy="480" r="5"/><text x="{:.1}" y="484">{}: {:.0}%, {} each</text>"#,
            i % 4,
            x + 5.0,
            x + 15.0,
            escape(&kind.name),
            kind.share * 100.0,
            say_ms(kind.mean_ms)
        );
        x += 214.0;
    }
}

/// Returns the goodput over all types, as points up to `seconds`.
fn good(phase: &Phase, seconds: f64) -> Vec<(f64, f64)> {
    let bins = phase
        .types
        .iter()
        .map(|kind| kind.curve.len())
        .min()
        .unwrap_or(0);
    (0..bins)
        .map(|i| {
            let at_s = (i as f64 + 0.5) * BIN.as_secs_f64();
            (
                at_s,
                phase.types.iter().map(|kind| kind.curve[i].good_rps).sum(),
            )
        })
        .take_while(|(at_s, _)| *at_s < seconds)
        .collect()
}

fn most_good(phase: &Phase) -> f64 {
    good(phase, f64::INFINITY)
        .iter()
        .map(|(_, rps)| *rps)
        .fold(0.0, f64::max)
}
