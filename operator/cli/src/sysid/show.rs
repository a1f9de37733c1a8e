//! The output of `headgate sysid`.

use std::fmt::Write as _;
use std::time::Duration;

use headgate_scenarios::sysid::trace::Trace;
use headgate_scenarios::sysid::{
    ControlLaw, Design, Fit, Goal, Plant, roots_json, roots_text, significant,
};
use serde_json::json;

use headgate_api::Duration as Written;
use headgate_command::output;
use headgate_command::table::Table;

/// The R² from which a model is acceptable (Chronos §4, Hellerstein et al.).
const ACCEPTABLE: f64 = 0.8;

/// The results of a trace.
pub(super) struct Found {
    pub(super) trace: Trace,
    /// The fits, by order of the model.
    pub(super) fits: Vec<Fit>,
    pub(super) chosen: Fit,
}

/// The results to show.
pub(super) struct Results<'a> {
    pub(super) identified: Option<&'a Found>,
    pub(super) plant: &'a Plant,
    /// The sampling period, s.
    pub(super) period: f64,
    pub(super) target: Duration,
    pub(super) law: ControlLaw,
    /// The goal of the design, or `None` if the user gave gains.
    pub(super) goal: Option<Goal>,
    pub(super) design: Option<&'a Design>,
    /// Whether gains for this model can be used in the policy.
    pub(super) usable: bool,
}

/// Returns the results as text.
pub(super) fn text(answer: &Results<'_>) -> String {
    let mut text = String::new();
    // Writing to a String does not fail.
    let mut line = |words: std::fmt::Arguments<'_>| {
        let _ = writeln!(text, "{words}");
    };
    if let Some(found) = answer.identified {
        let Found {
            trace,
            fits,
            chosen,
        } = found;
        line(format_args!(
            "{} periods of {} s, {} and {}: mean {:.3} and {:.1}\n",
            trace.samples,
            answer.period,
            trace.used.0,
            trace.used.1,
            chosen.mean_delay,
            chosen.mean_backlog
        ));
        let mut table = Table::new(["ORDER", "R²", "MODEL"]);
        for fit in fits {
            let mark = if fit.plant.order() == chosen.plant.order() {
                "  (used)"
            } else {
                ""
            };
            table.row([
                fit.plant.order().to_string(),
                format!("{:.3}", fit.r_squared),
                format!("{}{mark}", fit.plant),
            ]);
        }
        line(format_args!("{}", table.or("")));
        if chosen.r_squared < ACCEPTABLE {
            line(format_args!(
                "R² is below {ACCEPTABLE}: the model is too inaccurate. Record longer, or vary the \
                 load more.\n"
            ));
        }
    } else {
        line(format_args!("{}\n", answer.plant));
    }
    let plant = answer.plant;
    line(format_args!(
        "S(z)/D(z) = ({}) / ({})",
        plant.numerator(),
        plant.denominator()
    ));
    line(format_args!(
        "Poles of the open loop: {}; a lasting increase of the backlog by 1000 adds {:.3} s of \
         delay\n",
        roots_text(&plant.poles()),
        1000.0 * plant.gain()
    ));
    let Some(design) = answer.design else {
        return text;
    };
    if let Some(goal) = answer.goal {
        line(format_args!(
            "Goal: at most {:.0}% overshoot, settled within {:.0} s",
            100.0 * goal.overshoot,
            goal.settling * answer.period
        ));
    }
    line(format_args!(
        "K_P = {}, K_I = {}: poles of the closed loop {}",
        significant(design.gains.proportional, 4),
        significant(design.gains.integral, 4),
        roots_text(&design.poles)
    ));
    let stable = match design.is_stable() {
        true => "All poles are inside the unit circle: stable",
        false => "Not all poles are inside the unit circle: UNSTABLE",
    };
    line(format_args!(
        "{stable}. After a step: {}\n",
        response(design, answer.period)
    ));
    if !answer.usable {
        line(format_args!(
            "This is a model of square roots. For gains for the policy, leave out --square-root."
        ));
        return text;
    }
    if answer.law == ControlLaw::Bound {
        line(format_args!(
            "These gains are for the loop that the paper analyses (Eq. 8). Headgate sums up \
             adjustments (Eq. 1). For gains for the policy, leave out --law."
        ));
        return text;
    }
    if design.is_stable() {
        line(format_args!(
            "For the policy:\n  strategy:\n    type: BacklogControl\n    backlogControl:\n      \
             target: {}\n      period: {}\n      proportionalGain: {}\n      integralGain: {}",
            Written::from(answer.target),
            Written::from(Duration::from_secs_f64(answer.period)),
            significant(design.gains.proportional, 4),
            significant(design.gains.integral, 4)
        ));
    }
    text
}

/// Returns the results as JSON.
pub(super) fn json(answer: &Results<'_>) -> anyhow::Result<String> {
    let model = |plant: &Plant| {
        json!({
            "order": plant.order(), "a": plant.a(), "b": plant.b(), "gain": plant.gain(),
            "poles": roots_json(&plant.poles()),
        })
    };
    let fit = |fit: &Fit| {
        json!({
            "order": fit.plant.order(), "a": fit.plant.a(), "b": fit.plant.b(),
            "r_squared": fit.r_squared, "samples": fit.samples,
        })
    };
    let value = json!({
        "period_s": answer.period,
        "target_s": answer.target.as_secs_f64(),
        "samples": answer.identified.map(|found| found.trace.samples),
        "mean_delay_s": answer.identified.map(|found| found.chosen.mean_delay),
        "mean_backlog": answer.identified.map(|found| found.chosen.mean_backlog),
        "r_squared": answer.identified.map(|found| found.chosen.r_squared),
        "fits": answer.identified.map(|found| found.fits.iter().map(fit).collect::<Vec<_>>()),
        "model": model(answer.plant),
        "law": match answer.law { ControlLaw::Bound => "bound", ControlLaw::Adjustment => "adjustment" },
        "design": answer.design.map(|design| json!({
            "proportionalGain": design.gains.proportional,
            "integralGain": design.gains.integral,
            "poles": roots_json(&design.poles),
            "stable": design.is_stable(),
            "overshoot": design.response.overshoot,
            "settling_s": design.response.settling.map(|periods| periods as f64 * answer.period),
        })),
    });
    output::json(&value)
}

fn response(design: &Design, period: f64) -> String {
    let overshoot = 100.0 * design.response.overshoot.max(0.0);
    match design.response.settling {
        Some(periods) => format!(
            "{overshoot:.0}% overshoot, within 2% after {:.0} s",
            periods as f64 * period
        ),
        None => "does not settle".to_owned(),
    }
}
