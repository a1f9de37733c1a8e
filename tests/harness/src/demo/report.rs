//! The HTML report, a single file that is readable without network or scripts.

use std::fmt::Write as _;

use super::chart::{Panel, Vertical, escape, nice_step, say_ms};
use super::result::{DemoResult, Phase, TypeResult, TypeSetup};
use super::{palette, picture};

const WIDTH: f64 = 560.0;
const LATENCY_HEIGHT: f64 = 150.0;
const ADMISSION_HEIGHT: f64 = 80.0;

/// Returns the report as an HTML page.
pub fn html(result: &DemoResult) -> String {
    let mut out = String::with_capacity(200_000);
    let _ = write!(
        out,
        r#"<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width,initial-scale=1">
<meta name="color-scheme" content="light dark"><title>Headgate demo</title><style>{}{PAGE_CSS}</style></head><body><main>
"#,
        palette::CSS
    );
    intro(&mut out, result);
    claims(&mut out, result);
    before_and_after(&mut out, result);
    edits(&mut out, result);
    curves(&mut out, result);
    estimates(&mut out, result);
    setup(&mut out, result);
    out.push_str("</main></body></html>\n");
    out
}

const PAGE_CSS: &str = r#"
*{box-sizing:border-box}
body{margin:0;background:var(--bg);color:var(--fg);font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",sans-serif}
main{max-width:1180px;margin:0 auto;padding:24px 20px 64px}
h1{font-size:28px;margin:0 0 4px} h2{font-size:20px;margin:40px 0 8px} h3{font-size:16px;margin:28px 0 4px}
p{max-width:78ch;margin:6px 0} .muted{color:var(--muted)}
.cards{display:grid;grid-template-columns:repeat(auto-fit,minmax(210px,1fr));gap:12px;margin:20px 0}
.card{background:var(--panel);border:1px solid var(--edge);border-radius:8px;padding:12px 16px}
.card b{display:block;font-size:26px;line-height:1.2} .card span{color:var(--muted);font-size:13px}
table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums;margin:8px 0}
.scroll{overflow-x:auto}
th,td{padding:5px 10px;text-align:right;border-bottom:1px solid var(--grid);white-space:nowrap}
th:first-child,td:first-child{text-align:left} th{font-weight:600;color:var(--muted);font-size:13px}
td.left{text-align:left;white-space:normal} tr.group th{color:var(--fg);font-size:15px;padding-top:16px;text-align:left}
.ok{color:var(--good);font-weight:600} .no{color:var(--bad);font-weight:600}
.pair{display:grid;grid-template-columns:repeat(auto-fit,minmax(460px,1fr));gap:8px 24px}
figure{margin:0} figcaption{font-size:13px;color:var(--muted);margin:4px 0}
svg{width:100%;height:auto;display:block}
.key{display:flex;flex-wrap:wrap;gap:4px 18px;font-size:13px;color:var(--muted);margin:6px 0}
.key i{display:inline-block;width:22px;margin-right:6px;vertical-align:middle;border-top:2px solid}
.key i.box{height:11px;border:0}
code{font:13px ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;background:var(--panel);padding:1px 4px;border-radius:4px}
"#;

fn intro(out: &mut String, result: &DemoResult) {
    let setup = &result.setup;
    let _ = write!(
        out,
        r#"<h1>Headgate at {overload}× load</h1>
<p class="muted">The same load twice through Envoy {envoy} with {workers} worker threads to a backend that serves {p} requests at
once ({capacity:.0} requests/s of this mix): first Envoy alone (with its default circuit breakers), then with Headgate's filter programmed by <code>headgate run</code> from one
policy file. At {at:.0} s the load jumps from {calm}× to {overload}× of capacity. All numbers on this page were measured in this run.</p>
<div class="cards">
<div class="card"><b>{before:.0} → {after:.0}</b><span>requests/s answered inside their p90 objective, without and with Headgate</span></div>
<div class="card"><b>{work:.0}%</b><span>of the best possible, which refuses the costliest first</span></div>
<div class="card"><b>{slots} of {p}</b><span>slots found, with types and objectives only; at most {flight} requests in the backend ({at_first} in the first moments), {flight_before} without</span></div>
<div class="card"><b>{busy:.1}%</b><span>of the backend's slots in use while refusing</span></div>
</div>"#,
        overload = setup.overload,
        envoy = escape(&setup.envoy),
        workers = setup.envoy_workers,
        p = setup.parallelism,
        capacity = setup.capacity_rps,
        at = setup.overload_at_s,
        calm = setup.calm_load,
        before = result.without.goodput_rps,
        after = result.with.goodput_rps,
        work = 100.0 * result.with.goodput_rps / setup.ideal_rps,
        slots = result.with.slots_found.unwrap_or(0),
        flight = result.with.max_in_flight,
        at_first = result.with.max_in_flight_at_first,
        flight_before = result.without.max_in_flight,
        busy = 100.0 * result.with.utilization,
    );
    out.push_str(&picture::inline(result));
}

fn claims(out: &mut String, result: &DemoResult) {
    out.push_str("<h2>What was seen</h2><div class=\"scroll\"><table>");
    for claim in &result.claims {
        let _ = write!(
            out,
            r#"<tr><td>{}</td><td class="left">{}</td><td class="left muted">{}</td></tr>"#,
            mark(claim.seen),
            escape(&claim.text),
            escape(&claim.evidence)
        );
    }
    out.push_str("</table></div>");
}

fn before_and_after(out: &mut String, result: &DemoResult) {
    let (from, to) = result.setup.counted_s;
    let _ = write!(
        out,
        "<h2>Before and after, by type</h2><p class=\"muted\">Requests meant to be sent between \
{from:.0} s and {to:.0} s, all of it overload. Response times count from the intended moment of sending and cover answered requests.</p>\
<div class=\"scroll\"><table>\
<tr><th>type</th><th>offered/s</th><th>answered</th><th>refused</th><th>p50</th><th>objective</th>\
<th>p90</th><th>objective</th><th>inside p90, /s</th></tr>"
    );
    for (title, phase) in [
        ("Envoy alone", &result.without),
        ("Envoy with Headgate", &result.with),
    ] {
        let _ = write!(
            out,
            r#"<tr class="group"><th colspan="9">{title}</th></tr>"#
        );
        for (kind, setup) in phase.types.iter().zip(&result.setup.types) {
            type_row(out, kind, setup, to - from);
        }
        let _ = write!(
            out,
            r#"<tr><td><b>all</b></td><td></td><td></td><td></td><td></td><td></td><td></td><td></td><td><b>{:.0}</b></td></tr>"#,
            phase.goodput_rps
        );
    }
    out.push_str("</table></div>");
}

fn type_row(out: &mut String, kind: &TypeResult, setup: &TypeSetup, seconds: f64) {
    let totals = &kind.totals;
    let refused = if totals.offered == 0 {
        0.0
    } else {
        1.0 - totals.acceptance()
    };
    let _ = write!(
        out,
        "<tr><td>{}</td><td>{:.0}</td><td>{:.1}%</td><td>{:.1}%</td>{}{}<td>{:.0}</td></tr>",
        escape(&setup.name),
        totals.offered as f64 / seconds,
        100.0 * totals.acceptance(),
        100.0 * refused,
        percentile_cells(totals.p50_ms, setup.slo_p50_ms),
        percentile_cells(totals.p90_ms, setup.slo_p90_ms),
        totals.good as f64 / seconds,
    );
}

fn percentile_cells(measured: Option<f64>, objective: f64) -> String {
    let shown = measured.map_or_else(
        || "–".to_owned(),
        |ms| format!("{} {}", say_ms(ms), mark(ms <= objective)),
    );
    format!(
        "<td>{shown}</td><td class=\"muted\">{}</td>",
        say_ms(objective)
    )
}

fn edits(out: &mut String, result: &DemoResult) {
    if result.edits.is_empty() {
        return;
    }
    out.push_str(
        "<h2>Live edits</h2><p class=\"muted\">The policy file was saved while the overload went \
on. Nothing was restarted.</p>\
<div class=\"scroll\"><table><tr><th>edit</th><th>at</th><th>acknowledged by Envoy</th>\
<th>shows in answers</th></tr>",
    );
    for edit in &result.edits {
        let _ = write!(
            out,
            "<tr><td class=\"left\">{}</td><td>{:.1} s</td><td>after {}</td><td>{}</td></tr>",
            escape(&edit.what),
            edit.at_s,
            say_ms(edit.acknowledged_ms),
            edit.in_force_ms.map_or_else(
                || "not seen".to_owned(),
                |ms| format!("after {}", say_ms(ms))
            )
        );
    }
    out.push_str("</table></div>");
}

fn curves(out: &mut String, result: &DemoResult) {
    out.push_str(
        r#"<h2>Over time, by type</h2>
<div class="key"><span><i style="color:var(--p50)"></i>p50</span><span><i style="color:var(--p90)"></i>p90</span>
<span><i style="color:var(--muted);border-top-style:dashed"></i>objectives, in the colour of their percentile</span>
<span><i class="box" style="background:var(--good)"></i>answered</span><span><i class="box" style="background:var(--refused);opacity:.4"></i>refused</span></div>"#,
    );
    for (i, setup) in result.setup.types.iter().enumerate() {
        let _ = write!(
            out,
            r#"<h3>{} <span class="muted">· {:.0}% of requests · {} of service on average</span></h3><div class="pair">"#,
            escape(&setup.name),
            setup.share * 100.0,
            say_ms(setup.mean_ms)
        );
        for (title, phase, edited) in [
            ("Envoy alone", &result.without, false),
            ("Envoy with Headgate", &result.with, true),
        ] {
            if i < phase.types.len() {
                let _ = write!(out, "<figure><figcaption>{title}</figcaption>");
                type_chart(out, result, phase, i, edited);
                out.push_str("</figure>");
            }
        }
        out.push_str("</div>");
    }
}

fn type_chart(out: &mut String, result: &DemoResult, phase: &Phase, at: usize, edited: bool) {
    let (kind, setup) = (&phase.types[at], &result.setup.types[at]);
    let seconds = phase
        .types
        .iter()
        .flat_map(|kind| kind.curve.last())
        .map(|bin| bin.at_s.ceil())
        .fold(1.0, f64::max);
    let height = LATENCY_HEIGHT + ADMISSION_HEIGHT + 70.0;
    let _ = write!(
        out,
        r#"<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{} over time: p50 and p90, answered and refused">"#,
        escape(&setup.name)
    );
    let latency = Panel {
        x: 56.0,
        y: 20.0,
        width: WIDTH - 76.0,
        height: LATENCY_HEIGHT,
        seconds,
        vertical: Vertical::Log(1.0, 10_000.0),
    };
    latency.value_axis(out, say_ms);
    latency.level_line(out, "objective p50", setup.slo_p50_ms, 0.0, seconds);
    latency.level_line(out, "objective p90", setup.slo_p90_ms, 0.0, seconds);
    latency.line(
        out,
        "p50",
        kind.curve.iter().map(|bin| (bin.at_s, bin.p50_ms)),
    );
    latency.line(
        out,
        "p90",
        kind.curve.iter().map(|bin| (bin.at_s, bin.p90_ms)),
    );
    latency.event(out, result.setup.overload_at_s, "overload");

    let most = kind
        .curve
        .iter()
        .map(|bin| bin.offered_rps)
        .fold(1.0, f64::max);
    let step = nice_step(most / 3.0);
    let admission = Panel {
        y: latency.y + LATENCY_HEIGHT + 20.0,
        height: ADMISSION_HEIGHT,
        vertical: Vertical::Linear((most / step).ceil() * step),
        ..latency
    };
    let offered: Vec<_> = kind
        .curve
        .iter()
        .map(|bin| (bin.at_s, bin.offered_rps))
        .collect();
    let answered: Vec<_> = kind
        .curve
        .iter()
        .map(|bin| (bin.at_s, bin.answered_rps))
        .collect();
    admission.area(out, "refused", &offered);
    admission.area(out, "answered", &answered);
    admission.line(
        out,
        "offered",
        offered.iter().map(|&(t, rps)| (t, Some(rps))),
    );
    admission.value_axis(out, |rps| format!("{rps:.0}/s"));
    admission.time_axis(out, 5.0);
    admission.event(out, result.setup.overload_at_s, "");
    if edited {
        for (i, edit) in result.edits.iter().enumerate() {
            latency.event(out, edit.at_s, &format!("edit {}", i + 1));
            admission.event(out, edit.at_s, "");
        }
    }
    out.push_str("</svg>");
}

fn estimates(out: &mut String, result: &DemoResult) {
    if result.with.types.iter().all(|kind| kind.filter.is_empty()) {
        return;
    }
    out.push_str(
        "<h2>Estimated and measured</h2><p class=\"muted\">What the filter expected of the \
requests it accepted, what it measured itself, and what the client saw.</p>\
<div class=\"scroll\"><table><tr><th>type</th><th>percentile</th><th>estimated</th>\
<th>measured by the filter</th><th>seen by the client</th></tr>",
    );
    for (kind, setup) in result.with.types.iter().zip(&result.setup.types) {
        for (name, percentile) in &kind.filter {
            let client = match name.as_str() {
                "p50" => kind.totals.p50_ms,
                "p90" => kind.totals.p90_ms,
                _ => None,
            };
            let _ = write!(
                out,
                "<tr><td>{}</td><td>{name}</td><td>{}</td><td>{}</td><td>{}</td></tr>",
                escape(&setup.name),
                say_ms(percentile.estimated_ms),
                say_ms(percentile.measured_ms),
                client.map_or_else(|| "–".to_owned(), say_ms)
            );
        }
    }
    out.push_str("</table></div>");
}

fn setup(out: &mut String, result: &DemoResult) {
    let phases = [&result.without, &result.with];
    let worst = |late: fn(&Phase) -> f64| say_ms(phases.map(late).into_iter().fold(0.0, f64::max));
    let _ = write!(
        out,
        "<h2>How it was measured</h2><p>The mix is that of the Bouncer paper (§5.3) with its times \
         multiplied, so that a small machine can carry it, and objectives that suit each type. The \
         generator is open-loop: arrivals are Poisson and don't wait for answers; it sent at most \
         {} late, and the backend ended services at most {} late (p99). A run in which either is \
         later than a fifth of the p50 objective is discarded and repeated. The backend counts its \
         own in-flight requests and busy slots. Everything ran on one machine over its loopback \
         interface. Run it again with <code>scripts/demo</code>.</p>",
        worst(|phase| phase.lateness.generator_ms),
        worst(|phase| phase.lateness.backend_ms),
    );
    for (title, phase) in [
        ("Envoy alone", &result.without),
        ("Envoy with Headgate", &result.with),
    ] {
        for discarded in &phase.discarded {
            let _ = write!(
                out,
                "<p>{title}: a run was discarded, because {}.</p>",
                escape(&discarded.to_string())
            );
        }
    }
}

fn mark(ok: bool) -> &'static str {
    if ok {
        r#"<span class="ok">✓</span>"#
    } else {
        r#"<span class="no">✗</span>"#
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::demo::result::{Claim, Edit, Setup, TypeSetup};
    use crate::demo::timeline::{Bin, Totals};
    use crate::demo::value_cut;
    use crate::load::{Discarded, Lateness};
    use crate::mix;

    /// Returns an invented run, because the test is about the page, not the numbers.
    fn result() -> DemoResult {
        let types: Vec<TypeSetup> = mix::bouncer(4.0).iter().map(TypeSetup::from).collect();
        let discarded = Discarded {
            lateness: Lateness::default(),
            processors: None,
        };
        let phase = |growth: f64| Phase {
            types: types
                .iter()
                .map(|setup| TypeResult {
                    totals: Totals {
                        offered: 100,
                        answered: 70,
                        refused: 30,
                        good: 60,
                        p50_ms: Some(growth),
                        ..Totals::default()
                    },
                    curve: (0..60).map(|i| bin(i, setup, growth)).collect(),
                    filter: [(
                        "p50".to_owned(),
                        crate::demo::result::FilterPercentile {
                            estimated_ms: 70.0,
                            measured_ms: 68.0,
                        },
                    )]
                    .into(),
                })
                .collect(),
            goodput_rps: 990.0,
            max_in_flight_at_first: 60,
            max_in_flight: 20,
            slots_found: Some(20),
            value_cut: Some(value_cut::tests::cut()),
            utilization: 0.985,
            lateness: Lateness::default(),
            backend_late_mean_ms: 0.1,
            discarded: vec![discarded],
        };
        DemoResult {
            setup: Setup {
                envoy: "1.40.0".into(),
                envoy_workers: 2,
                parallelism: 20,
                capacity_rps: 756.0,
                calm_load: 0.8,
                ideal_rps: 1001.0,
                overload: 1.5,
                overload_at_s: 5.0,
                counted_s: (7.0, 25.0),
                types: types.clone(),
            },
            without: phase(90.0),
            with: phase(2.0),
            edits: vec![Edit {
                what: "a < b".into(),
                at_s: 25.0,
                acknowledged_ms: 31.0,
                in_force_ms: Some(220.0),
            }],
            claims: vec![Claim {
                text: "Slots".into(),
                seen: true,
                evidence: "20 of 20".into(),
            }],
        }
    }

    fn bin(i: u32, setup: &TypeSetup, growth: f64) -> Bin {
        let at_s = f64::from(i) * 0.5 + 0.25;
        let rate = if at_s < 5.0 { 600.0 } else { 1134.0 } * setup.share;
        let ms = setup.mean_ms
            + if at_s < 5.0 {
                0.0
            } else {
                growth * (at_s - 5.0)
            };
        Bin {
            at_s,
            offered_rps: rate,
            answered_rps: rate * 0.8,
            refused_rps: rate * 0.2,
            good_rps: rate * 0.7,
            p50_ms: (!i.is_multiple_of(17)).then_some(ms),
            p90_ms: Some(ms * 2.5),
        }
    }

    #[test]
    fn the_value_cut_is_drawn_within_its_picture() {
        let picture = value_cut::svg(&result()).unwrap();
        // Each type has a pale bar for refused requests and a filled one for the others.
        assert_eq!(picture.matches("<rect class=\"dot").count(), 2 * 3);
        let sizes = picture.split("font-size:").skip(1);
        let sizes = sizes.map(|size| size.split_once("px").unwrap().0.parse::<u32>().unwrap());
        assert!(sizes.min() >= Some(12));
        let places = picture.split(" x=\"").skip(1);
        let places = places.map(|place| place.split_once('"').unwrap().0.parse::<f64>().unwrap());
        assert!({ places }.all(|x| (0.0..760.0).contains(&x)), "{picture}");
    }

    #[test]
    fn the_page_needs_nothing_else_and_escapes_what_it_is_given() {
        let page = html(&result());
        for outside in ["http://", "https://", "<script", "<link", "url(", "@import"] {
            assert!(!page.contains(outside), "{outside}");
        }
        assert!(page.contains("a &lt; b") && !page.contains("a < b"));
        assert_eq!(page.matches("a run was discarded").count(), 2);
        assert_eq!(page.matches("<svg").count(), page.matches("</svg>").count());
        assert_eq!(
            page.matches("<svg").count(),
            1 + 2 * 4,
            "the summary, and two charts for every type"
        );
    }
}
