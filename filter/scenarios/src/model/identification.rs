//! System identification (Chronos §4, Eq. 4 to 8). It finds the model of the database, the
//! closed-loop poles of the paper's gains, and gains for Headgate's loop.

use headgate_simulator::SimulationError;
use headgate_simulator::clients::threads::Sample;
use num_complex::Complex64;
use serde::Deserialize;

use super::Amount;
use super::threads::{self, Threads};
use crate::measured::{ALL, Measured, mean};
use crate::sysid::{
    ControlLaw, Design, Fit, Gains, Goal, MAX_ORDER, Plant, Segment, Transform, choose_order,
    design, identify, roots_text,
};

/// The allowed overshoot, ratio. In Table 1, S_v = 2.5 s for S_t = 2 s.
const OVERSHOOT: f64 = 0.25;
/// S_t, the target delay, s.
const TARGET_S: f64 = 2.0;
/// T_v, the settling time, and the longer times to try if no gains reach T_v, in periods.
const SETTLING: [f64; 8] = [10.0, 15.0, 20.0, 30.0, 45.0, 60.0, 90.0, 120.0];
/// The number of periods whose delay is shown with its prediction.
const SHOWN: usize = 120;

/// The parameters of a system identification.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Identification {
    /// The clients and the database.
    threads: Threads,
    /// The time before samples count, s.
    warm_up: usize,
    /// The paper's K_P and K_I.
    gains: [f64; 2],
    /// The coefficients a and b of the paper's model (Eq. 5).
    plant: [Vec<f64>; 2],
    /// The poles in the paper, with real and imaginary part.
    poles: Vec<[f64; 2]>,
}

impl Identification {
    pub(super) fn run(&self, amount: &Amount, seed: u64) -> Result<Measured, SimulationError> {
        let samples = self.threads.samples(amount, seed)?;
        let mut measured = Measured::default();
        let segment = self.segment(&samples);
        let fit =
            |order, transform| identify(std::slice::from_ref(&segment), order, transform).ok();
        let mut plain = Vec::new();
        for order in 1..=MAX_ORDER {
            let Some(found) = fit(order, Transform::None) else {
                break;
            };
            let kind = format!("order {order}");
            measured.note(&kind, "r_squared", found.r_squared);
            let roots = fit(order, Transform::SquareRoot);
            measured.note(&kind, "r_squared_of_roots", roots.map(|fit| fit.r_squared));
            measured
                .words
                .push((format!("model of {kind}"), found.plant.to_string()));
            plain.push(found);
        }
        self.papers_gains(&mut measured);
        threads::draw(&mut measured, &samples);
        if let Some(chosen) = choose_order(&plain) {
            for (law, kind) in [
                (ControlLaw::Adjustment, "Eq. 1 and 7, for our model"),
                (ControlLaw::Bound, "Eq. 8, for our model"),
            ] {
                let goal = |settling: f64| Goal {
                    overshoot: OVERSHOOT,
                    settling,
                };
                let found = SETTLING
                    .iter()
                    .find_map(|s| design(&chosen.plant, law, goal(*s)).ok());
                if let Some(found) = found {
                    note(&mut measured, kind, &found);
                }
            }
            let shown = &samples[samples.len().min(self.warm_up)..];
            let predicted = predicted(&shown[..shown.len().min(SHOWN)], chosen, self.warm_up);
            measured.draw("predicted", "delay_s", predicted);
        }
        let counted = || threads::delays(&samples, self.warm_up..samples.len());
        measured.note(ALL, "delay_s", mean(counted()));
        measured.note(ALL, "largest_s", counted().reduce(f64::max));
        let longest = threads::longest_above(&samples, self.warm_up..samples.len(), TARGET_S);
        measured.note(ALL, "longest_above_s", longest as f64);
        Ok(measured)
    }

    fn segment(&self, samples: &[Sample]) -> Segment {
        let mut segment = Segment::default();
        for sample in samples.iter().skip(self.warm_up) {
            if let Some(delay) = sample.mean_delay() {
                segment.delays.push(delay);
                segment.backlogs.push(sample.backlog as f64);
            }
        }
        segment
    }

    /// Measures three closed loops with the paper's gains. The first has Eq. 5 as printed, the
    /// second has the opposite sign of a₂, and the third has the additional integration of Eq. 1.
    fn papers_gains(&self, measured: &mut Measured) {
        let [a, b] = &self.plant;
        let gains = Gains {
            proportional: self.gains[0],
            integral: self.gains[1],
        };
        let turned: Vec<f64> = a
            .iter()
            .enumerate()
            .map(|(i, a)| if i == 1 { -a } else { *a })
            .collect();
        for (a, law, kind) in [
            (a, ControlLaw::Bound, "Eq. 6 and 8 as printed"),
            (&turned, ControlLaw::Bound, "Eq. 6 and 8 with +0.104"),
            (
                a,
                ControlLaw::Adjustment,
                "Eq. 6, 7, and 1, which integrates once more",
            ),
        ] {
            let Some(plant) = Plant::new(a.clone(), b.clone()) else {
                continue;
            };
            let design = Design::of(&plant, law, gains);
            note(measured, kind, &design);
            let apart = |[re, im]: &[f64; 2]| {
                let apart = |p: &Complex64| (p.re - re).abs().max((p.im.abs() - im).abs());
                design.poles.iter().map(apart).fold(f64::INFINITY, f64::min)
            };
            let most = self.poles.iter().map(apart).fold(0.0, f64::max);
            measured.note(kind, "poles_apart", most);
        }
    }
}

fn note(measured: &mut Measured, kind: &str, design: &Design) {
    measured.note(kind, "proportional_gain", design.gains.proportional);
    measured.note(kind, "integral_gain", design.gains.integral);
    let largest = design
        .poles
        .iter()
        .map(|pole| pole.norm())
        .fold(0.0, f64::max);
    measured.note(kind, "largest_pole", largest);
    measured.note(
        kind,
        "overshoot_pct",
        100.0 * design.response.overshoot.max(0.0),
    );
    measured.note(
        kind,
        "settled_s",
        design.response.settling.map(|k| k as f64),
    );
    measured
        .words
        .push((format!("poles, {kind}"), roots_text(&design.poles)));
}

/// Returns the model's predictions of the delay one period ahead, over time.
fn predicted(samples: &[Sample], model: &Fit, from: usize) -> Vec<(f64, Option<f64>)> {
    let order = model.plant.order();
    let known = |s: &Sample| {
        Some((
            s.mean_delay()? - model.mean_delay,
            s.backlog as f64 - model.mean_backlog,
        ))
    };
    let known: Vec<(f64, f64)> = samples.iter().filter_map(known).collect();
    let next = |k: usize| {
        let (delays, backlogs): (Vec<f64>, Vec<f64>) = (1..=order).map(|i| known[k - i]).unzip();
        let delay = model.plant.next(&delays, &backlogs) + model.mean_delay;
        ((from + k) as f64, Some(delay))
    };
    (order..known.len()).map(next).collect()
}
