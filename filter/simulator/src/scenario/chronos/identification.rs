//! System identification (§4, Eq. 4 to 8): the model of the database, the poles that the paper's gains
//! give, and gains for the loop that Headgate runs.

use super::measures::{largest, longest_above, mean_delay};
use super::model::{self, Approach, TARGET_S};
use crate::clients::threads::Sample;
use crate::progress::Progress;
use crate::report::{
    Axis, Cell, Claim, Compared, Figure, Group, Record, Report, Series, Style, Table, TableRow,
};
use crate::scenario::Size;
use crate::simulation::SimulationError;
use crate::sysid::{
    Design, Fit, Gains, Goal, Law, MAX_ORDER, Plant, Segment, Transform, choose_order, design,
    identify,
};

/// §4: one hour.
const LENGTH_S: u64 = 3_600;
/// Time before samples count, s.
const WARM_UP_S: usize = 30;
/// Table 1: S_v = 2.5 s for S_t = 2 s.
const OVERSHOOT: f64 = 0.25;
/// T_v, and what is tried when it can't be had, in periods.
const SETTLING: [f64; 8] = [10.0, 15.0, 20.0, 30.0, 45.0, 60.0, 90.0, 120.0];
/// R² that makes a model acceptable.
const ACCEPTABLE: f64 = 0.8;

pub(super) fn run(
    size: &Size,
    progress: &dyn Progress,
    mut report: Report,
) -> Result<Report, SimulationError> {
    let length = ((LENGTH_S as f64 * super::part(size)) as u64).max(120);
    progress.expect(length);
    let seed = size.first_seed();
    let habits = model::for_identification();
    let (samples, _) = model::run(Approach::Open, &habits, length, seed)?;
    progress.done(length);
    report.setup(
        "clients",
        "1200, closed loop, inter-request times of 0.5 to 2.5 s; all let in",
    );
    report.setup("length", format!("{length} s, sampled each second"));
    report.setup("seed", seed.to_string());
    let segment = segment(&samples);
    let fits = |transform: Transform| -> Vec<Fit> {
        let one = |order| identify(std::slice::from_ref(&segment), order, transform).ok();
        (1..=MAX_ORDER).map_while(one).collect()
    };
    let (plain, roots) = (fits(Transform::None), fits(Transform::SquareRoot));
    models(&mut report, &plain, &roots);
    papers_gains(&mut report);
    if let Some(chosen) = choose_order(&plain) {
        gains(&mut report, chosen);
        predictions(&mut report, &samples, chosen);
    }
    report.rows = samples
        .iter()
        .enumerate()
        .map(|(at, sample)| {
            Record::new()
                .with("time_s", at as f64)
                .with("delay_s", sample.mean_delay())
                .with("backlog", sample.backlog as f64)
        })
        .collect();
    report.notes.push(format!(
        "Mean delay {:.2} s, at most {:.2} s; above S_t for at most {} s.",
        mean_delay(&samples, WARM_UP_S..samples.len()),
        largest(&samples, WARM_UP_S..samples.len()).0,
        longest_above(&samples, WARM_UP_S..samples.len(), TARGET_S as f64),
    ));
    report.notes.push(
        "The rows of --json are a trace that headgate sysid reads: it finds the same model."
            .to_owned(),
    );
    Ok(report)
}

fn segment(samples: &[Sample]) -> Segment {
    let mut segment = Segment::default();
    for sample in samples.iter().skip(WARM_UP_S) {
        if let Some(delay) = sample.mean_delay() {
            segment.delays.push(delay);
            segment.backlogs.push(sample.backlog as f64);
        }
    }
    segment
}

fn models(report: &mut Report, plain: &[Fit], roots: &[Fit]) {
    let row = |(fit, root): (&Fit, &Fit)| TableRow {
        label: fit.plant.order().to_string(),
        cells: vec![
            Cell::Number(fit.r_squared, 3),
            match fit.plant.order() {
                2 => Cell::Compared(Compared {
                    ours: Some(root.r_squared),
                    decimals: 3,
                    expected: 0.86,
                    printed: "0.86".to_owned(),
                    within: None,
                }),
                _ => Cell::Number(root.r_squared, 3),
            },
            Cell::Text(fit.plant.to_string()),
        ],
    };
    report.tables.push(Table {
        title: "Eq. 4, identified: s in seconds, d in data accesses".to_owned(),
        columns: ["order", "R²", "R² of square roots", "model"]
            .map(str::to_owned)
            .to_vec(),
        groups: vec![Group {
            title: String::new(),
            rows: plain.iter().zip(roots).map(row).collect(),
        }],
    });
    let r = |order: usize| plain.get(order - 1).map_or(f64::NAN, |fit| fit.r_squared);
    report.claims.push(Claim {
        text: format!("the second order is acceptable: R² of at least {ACCEPTABLE}"),
        paper: "0.86".to_owned(),
        ours: format!("{:.3}", r(2)),
        holds: Some(r(2) >= ACCEPTABLE),
    });
    report.claims.push(Claim {
        text: "the third and fourth order have almost the same R² as the second".to_owned(),
        paper: String::new(),
        ours: format!("{:.3}, {:.3}, {:.3}", r(2), r(3), r(4)),
        holds: Some((r(4) - r(2)).abs() <= 0.02),
    });
    report.claims.push(Claim {
        text: "the first order is not accurate enough".to_owned(),
        paper: String::new(),
        ours: format!("{:.3}", r(1)),
        holds: Some(r(1) < ACCEPTABLE),
    });
}

/// What Eq. 5 as printed, and with the other sign of a₂, makes of K_P = 2.77 and K_I = 5.28.
fn papers_gains(report: &mut Report) {
    let gains = Gains {
        proportional: 2.77,
        integral: 5.28,
    };
    let plant = |a2: f64| Plant::new(vec![-0.003, a2], vec![0.015, 0.006]);
    let (Some(printed), Some(turned)) = (plant(-0.104), plant(0.104)) else {
        return;
    };
    let of = |plant: &Plant, law: Law| Design::of(plant, law, gains);
    let row = |label: &str, design: &Design| TableRow {
        label: label.to_owned(),
        cells: vec![
            Cell::Text(poles(design)),
            Cell::Text(if design.is_stable() { "yes" } else { "no" }.to_owned()),
            Cell::Number(100.0 * design.response.overshoot.max(0.0), 0),
            Cell::number(design.response.settling.map(|k| k as f64), 0),
        ],
    };
    let single = of(&printed, Law::Bound);
    let double = of(&printed, Law::Adjustment);
    let other = of(&turned, Law::Bound);
    report.tables.push(Table {
        title: "The paper's gains, K_P = 2.77 and K_I = 5.28, on the paper's model".to_owned(),
        columns: [
            "loop",
            "poles",
            "stable",
            "overshoot, %",
            "settled after, s",
        ]
        .map(str::to_owned)
        .to_vec(),
        groups: vec![Group {
            title: "printed: -0.308, 0.52 ± 0.106i".to_owned(),
            rows: vec![
                row("Eq. 6 and 8 as printed", &single),
                row("the same with +0.104 in Eq. 5", &other),
                row("Eq. 6, 7, and Eq. 1, which integrates once more", &double),
            ],
        }],
    });
    report.claims.push(Claim {
        text: "with Eq. 6 and 8, K_P = 2.77 and K_I = 5.28 give the poles".to_owned(),
        paper: "-0.308, 0.52 ± 0.106i".to_owned(),
        ours: poles(&single),
        holds: Some(is_pole(&single, -0.308, 0.0) && is_pole(&single, 0.52, 0.106)),
    });
    report.claims.push(Claim {
        text: "all poles lie inside of the unit circle".to_owned(),
        paper: String::new(),
        ours: poles(&single),
        holds: Some(single.is_stable()),
    });
    report.notes.push(format!(
        "The paper's poles belong to s(k) = -0.003 s(k-1) + 0.104 s(k-2) + …, the other sign of a2 than in \
         Eq. 5: {}, as near as b1 and b2 are printed.",
        poles(&other)
    ));
    report.notes.push(
        "Eq. 1 adds up the output of Eq. 7, which Eq. 8 has integrated already. Taken by the letter, the \
         paper's gains ring; gains for that loop, which Headgate runs, have to be smaller."
            .to_owned(),
    );
}

/// Whether one of the poles is where it was printed, to its second decimal and half of the third.
fn is_pole(design: &Design, re: f64, im: f64) -> bool {
    let near =
        |p: &num_complex::Complex64| (p.re - re).abs() < 0.03 && (p.im.abs() - im).abs() < 0.03;
    design.poles.iter().any(near)
}

fn poles(design: &Design) -> String {
    let real = |re: f64| (1e3 * re).round() / 1e3 + 0.0;
    let upper = design.poles.iter().filter(|p| p.im >= 0.0);
    let shown = upper.map(|p| match p.im {
        0.0 => format!("{:.3}", real(p.re)),
        im => format!("{:.3} ± {im:.3}i", real(p.re)),
    });
    shown.collect::<Vec<_>>().join(", ")
}

/// Gains for the identified model.
fn gains(report: &mut Report, chosen: &Fit) {
    let row = |law: Law, label: &str| {
        let found = SETTLING.iter().find_map(|settling| {
            let goal = Goal {
                overshoot: OVERSHOOT,
                settling: *settling,
            };
            design(&chosen.plant, law, goal).ok()
        });
        let cells = match &found {
            None => vec![Cell::Text("none found".to_owned())],
            Some(design) => vec![
                Cell::Number(design.gains.proportional, 1),
                Cell::Number(design.gains.integral, 4),
                Cell::Text(poles(design)),
                Cell::Number(100.0 * design.response.overshoot.max(0.0), 0),
                Cell::number(design.response.settling.map(|k| k as f64), 0),
            ],
        };
        TableRow {
            label: label.to_owned(),
            cells,
        }
    };
    report.tables.push(Table {
        title: format!(
            "Gains for the model of order {}: overshoot at most 25%, settled as soon as can be from 10 s on",
            chosen.plant.order()
        ),
        columns: ["loop", "K_P", "K_I", "poles", "overshoot, %", "settled after, s"]
            .map(str::to_owned)
            .to_vec(),
        groups: vec![Group {
            title: String::new(),
            rows: vec![
                row(Law::Adjustment, "Eq. 1 and 7 (backlogControl)"),
                row(Law::Bound, "Eq. 8 (the paper's analysis)"),
            ],
        }],
    });
}

fn predictions(report: &mut Report, samples: &[Sample], chosen: &Fit) {
    const SHOWN: usize = 120;
    let order = chosen.plant.order();
    let part = samples.iter().skip(WARM_UP_S).take(SHOWN + order);
    let known: Vec<(f64, f64)> = part
        .filter_map(|s| {
            Some((
                s.mean_delay()? - chosen.mean_delay,
                s.backlog as f64 - chosen.mean_backlog,
            ))
        })
        .collect();
    let predicted = (order..known.len()).map(|k| {
        let back = |i: usize| known[k - i];
        let delays: Vec<f64> = (1..=order).map(|i| back(i).0).collect();
        let backlogs: Vec<f64> = (1..=order).map(|i| back(i).1).collect();
        let delay = chosen.plant.next(&delays, &backlogs) + chosen.mean_delay;
        ((WARM_UP_S + k) as f64, Some(delay))
    });
    let measured = (order..known.len())
        .map(|k| ((WARM_UP_S + k) as f64, Some(known[k].0 + chosen.mean_delay)));
    report.figures.push(Figure {
        title: "Measured delay, and the model's prediction one period ahead".to_owned(),
        x: Axis::new("time, s"),
        y: Axis::new("service delay, s"),
        series: vec![
            Series::new("measured", Style::Line, measured),
            Series::new("predicted", Style::Dashed, predicted),
        ],
        ..Figure::default()
    });
}
