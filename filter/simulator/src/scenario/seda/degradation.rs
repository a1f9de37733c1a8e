//! A service that answers in less quality under a spike, alone (Figure 12) and with admission control at
//! the lowest quality (Figure 13).

use super::service::clients;
use super::spike::Spike;
use super::stage::{Control, stage};
use super::trial::{Seen, Service, Trial, run};
use super::{Curve, claim, mean, words};
use crate::progress::Progress;
use crate::report::{
    Axis, Cell, Figure, Group, Level, Record, Report, Series, Style, Table, TableRow,
};
use crate::scenario::Size;
use crate::simulation::SimulationError;

/// Figure 12: "The 90th-percentile response time target is set to 5 seconds."
const TARGET_S: u64 = 5;

pub(super) fn figure(
    admission: bool,
    size: &Size,
    progress: &dyn Progress,
    mut report: Report,
) -> Result<Report, SimulationError> {
    let spike = Spike::of(size);
    let controls = match admission {
        false => [Control::None, Control::Degradation(TARGET_S, false)],
        true => [
            Control::Degradation(TARGET_S, false),
            Control::Degradation(TARGET_S, true),
        ],
    };
    let labels = match admission {
        false => ["no control", "degradation"],
        true => ["degradation", "degradation and admission control"],
    };
    let habits = clients()?;
    let trials = controls.map(|control| Trial {
        service: Service::Benchmark,
        stage: stage(&["page"], 1, control),
        habits: habits.clone(),
        stays: spike.stays(),
        length: spike.length,
    });
    report.setup(
        "service",
        "one processor, 150 ms a request at full quality, in proportion to the quality down to 0.04",
    );
    spike.setup(&mut report);
    report.setup("target", format!("90th percentile {TARGET_S} s"));
    let runs = run(&trials, size, 1, progress)?;
    report.setup(
        "runs",
        format!(
            "{} of each, seeds from {}; figures show the first",
            runs[0].len(),
            size.first_seed()
        ),
    );
    let count = (spike.length / super::INTERVAL_S) as usize;
    let curve = |which: usize, value: &dyn Fn(&Seen) -> Curve| {
        runs[which].first().map(value).unwrap_or_default()
    };
    let times = |which| {
        curve(which, &|s| {
            s.classes[0].curve(count, |a, i| a.response_time(i, 0.9))
        })
    };
    let quality = |which| curve(which, &|s| s.classes[0].curve(count, |a, i| a.quality(i)));
    let refused = |which| {
        curve(which, &|s| {
            let of = |(time, pct): (f64, Option<f64>)| (time, pct.map(|p| p / 100.0));
            s.classes[0]
                .curve(count, |a, i| a.refused_pct(i))
                .into_iter()
                .map(of)
                .collect()
        })
    };
    report.figures.push(Figure {
        title: "90th percentile response time".to_owned(),
        x: Axis::new("time, s"),
        y: Axis::new("90th percentile response time, s").log(),
        series: (0..2)
            .map(|w| Series::new(labels[w], Style::Line, times(w)).coloured(w))
            .collect(),
        levels: vec![Level::new(TARGET_S as f64, "target")],
        events: spike.events(),
        ..Figure::default()
    });
    let mut knobs = vec![Series::new("quality", Style::Line, quality(1))];
    if admission {
        knobs.push(Series::new("rejected", Style::Dashed, refused(1)));
    }
    report.figures.push(Figure {
        title: format!("Quality of the service with {}", labels[1]),
        x: Axis::new("time, s"),
        y: Axis::new("ratio").between(0.0, 1.0),
        series: knobs,
        events: spike.events(),
        ..Figure::default()
    });
    let p90 = |which: usize| {
        mean(&runs[which], |s| {
            s.classes[0].response_time(spike.settled(), 0.9)
        })
    };
    let mean_quality = |which: usize| mean(&runs[which], |s| s.classes[0].quality(spike.settled()));
    let rejected = |which: usize| mean(&runs[which], |s| s.classes[0].refused_pct(spike.settled()));
    let served = |which: usize| {
        mean(&runs[which], |s| {
            Some(s.classes[0].served(spike.settled()) as f64)
        })
    };
    let seconds = (spike.settled().len() as u64 * super::INTERVAL_S).max(1) as f64;
    let row = |which: usize| TableRow {
        label: labels[which].to_owned(),
        cells: vec![
            Cell::number(p90(which), 2),
            Cell::number(mean_quality(which), 3),
            Cell::number(rejected(which), 1),
            Cell::number(served(which).map(|n| n / seconds), 1),
        ],
    };
    report.tables.push(Table {
        title: "During the spike, without its first two fifths".to_owned(),
        columns: [
            "",
            "90th percentile, s",
            "quality",
            "rejected, %",
            "served/s",
        ]
        .map(str::to_owned)
        .to_vec(),
        groups: vec![Group {
            title: String::new(),
            rows: (0..2).map(row).collect(),
        }],
    });
    let target = TARGET_S as f64;
    report.claims = match admission {
        false => vec![
            claim(
                "without degradation response times grow very large",
                "",
                words(p90(0), 0, " s"),
                p90(0).is_some_and(|t| t > 10.0 * target),
            ),
            claim(
                "degradation alone greatly reduces them, to near the target",
                "",
                format!(
                    "{} at a quality of {}",
                    words(p90(1), 1, " s"),
                    words(mean_quality(1), 2, "")
                ),
                p90(1) < p90(0).map(|t| t / 5.0) && p90(1).is_some_and(|t| t < 3.0 * target),
            ),
        ],
        true => vec![
            claim(
                "with admission control response times meet the target better than with degradation alone",
                "",
                format!(
                    "{} against {}",
                    words(p90(1), 1, " s"),
                    words(p90(0), 1, " s")
                ),
                p90(1) < p90(0) && p90(1).is_some_and(|t| t <= 1.2 * target),
            ),
            claim(
                "a very large part of the requests is rejected",
                "99%",
                words(rejected(1), 1, "%"),
                rejected(1).is_some_and(|pct| pct > 90.0),
            ),
        ],
    };
    for (which, label) in labels.iter().enumerate() {
        let all = times(which)
            .into_iter()
            .zip(quality(which))
            .zip(refused(which));
        for (((time, p90), (_, quality)), (_, refused)) in all {
            let row = Record::new()
                .with("strategy", *label)
                .with("time_s", time)
                .with("rt_p90_s", p90)
                .with("quality", quality)
                .with("rejected_pct", refused.map(|r| 100.0 * r));
            report.rows.push(row);
        }
    }
    Ok(report)
}
