//! `headgate sysid`: finds gains for backlog control from a trace of a service (Chronos §4).

mod show;

use std::path::PathBuf;

use anyhow::{Context as _, bail};
use clap::{Args, ValueEnum};
use headgate_api::Duration as Text;
use headgate_scenarios::sysid::trace::{self, Columns, Trace};
use headgate_scenarios::sysid::{
    ControlLaw, Design, Fit, Gains, Goal, MAX_ORDER, Plant, Transform, choose_order, design,
    identify,
};

use crate::input::text_of;
use headgate_command::output::Output;
use show::{Found, Results};

/// Finds how the delay of a service follows its backlog, and gains for backlogControl that hold the
/// delay at its target: system identification and pole placement.
///
/// Record a trace while the service accepts all requests, at loads that make it queue: a row each
/// period with the mean delay of the requests that ended in it and the backlog at its end. An
/// access log of Envoy is such a trace if it has START_TIME, RESPONSE_DURATION (or DURATION) and
/// x-envoy-upstream-service-time. Its backlogs are in the unit of x-headgate-cost, or, if no line
/// has that, in ms of service times.
#[derive(Debug, Clone, Args)]
pub(crate) struct SysidArgs {
    /// Trace file, as CSV with a header line, as the JSON of headgate simulate --json, or as an
    /// access log; - for standard input
    #[arg(required_unless_present = "model", value_name = "FILE")]
    pub(crate) trace: Option<PathBuf>,
    /// Coefficients of Eq. 4, a1,a2,…;b1,b2,…, instead of a trace
    #[arg(
        long,
        value_name = "A;B",
        value_parser = model,
        conflicts_with = "trace",
        allow_hyphen_values = true
    )]
    pub(crate) model: Option<Plant>,
    /// Column of the mean delays, in seconds unless its name ends with another unit [default:
    /// delay]
    #[arg(long, value_name = "COLUMN")]
    pub(crate) delay: Option<String>,
    /// Column of the backlogs, in the unit of backlogControl's cost [default: backlog]
    #[arg(long, value_name = "COLUMN")]
    pub(crate) backlog: Option<String>,
    /// Column of the times, by which gaps between rows are found and left out [default: time]
    #[arg(long, value_name = "COLUMN")]
    pub(crate) time: Option<String>,
    /// Order of the model, 1 to 4 [default: the lowest that predicts as well as the others]
    #[arg(
        long,
        value_name = "N",
        value_parser = clap::value_parser!(u8).range(1..=MAX_ORDER as i64)
    )]
    pub(crate) order: Option<u8>,
    /// Fit the square roots of delays and backlogs, as the paper does; only to compare R²
    #[arg(long)]
    pub(crate) square_root: bool,
    /// Sampling period, if the trace is an access log or has no times
    #[arg(long, value_name = "DURATION", default_value = "1s", value_parser = Text::above_zero)]
    pub(crate) period: std::time::Duration,
    /// Target of the delay (S_t)
    #[arg(long, value_name = "DURATION", default_value = "2s", value_parser = Text::above_zero)]
    pub(crate) target: std::time::Duration,
    /// Highest delay after a step to the target (S_v)
    #[arg(long, value_name = "DURATION", default_value = "2500ms", value_parser = Text::above_zero)]
    pub(crate) overshoot: std::time::Duration,
    /// Time in which the delay settles (T_v); the trace's dead time sets a limit [default: the
    /// shortest possible, but at least 10s]
    #[arg(long, value_name = "DURATION", value_parser = Text::above_zero)]
    pub(crate) settling_time: Option<std::time::Duration>,
    /// Gains K_P,K_I to check, instead of computed ones
    #[arg(long, value_name = "KP,KI", value_parser = gains, allow_hyphen_values = true)]
    pub(crate) gains: Option<Gains>,
    /// Variable that Eq. 7 drives
    #[arg(long, value_name = "LAW", default_value = "adjustment")]
    pub(crate) law: LawName,
    /// Print the results as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Variable that Eq. 7 drives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum LawName {
    /// The adjustment of the bound, which Eq. 1 sums up, as in Headgate
    Adjustment,
    /// The bound itself: the loop that the paper analyses in Eq. 8
    Bound,
}

impl From<LawName> for ControlLaw {
    fn from(name: LawName) -> Self {
        match name {
            LawName::Adjustment => Self::Adjustment,
            LawName::Bound => Self::Bound,
        }
    }
}

/// Parses a model, `A;B`.
fn model(text: &str) -> Result<Plant, String> {
    let what = "as many coefficients a as b, such as -0.003,-0.104;0.015,0.006";
    let (a, b) = text.split_once(';').ok_or(what)?;
    Plant::new(numbers(a)?, numbers(b)?).ok_or_else(|| what.to_owned())
}

/// Parses gains, `KP,KI`.
fn gains(text: &str) -> Result<Gains, String> {
    match numbers(text)?[..] {
        [proportional, integral] => Ok(Gains {
            proportional,
            integral,
        }),
        _ => Err("two numbers, K_P and K_I, such as 2.77,5.28".to_owned()),
    }
}

fn numbers(text: &str) -> Result<Vec<f64>, String> {
    let number = |word: &str| match word.trim().parse::<f64>() {
        Ok(number) if number.is_finite() => Ok(number),
        _ => Err(format!("{word:?} is not a number")),
    };
    text.split(',').map(number).collect()
}

/// Identifies the system, designs the controller, and prints both.
///
/// # Errors
/// Returns an error for a mistake in the trace, or if no gains exist.
pub(crate) fn run(args: &SysidArgs) -> anyhow::Result<Output> {
    let identified = match (&args.model, &args.trace) {
        (Some(_), _) | (None, None) => None,
        (None, Some(path)) => Some(identified(args, path)?),
    };
    let plant = match (&args.model, &identified) {
        (Some(model), _) => model.clone(),
        (None, Some(found)) => found.chosen.plant.clone(),
        (None, None) => bail!("give a trace file or --model"),
    };
    let period = identified
        .as_ref()
        .and_then(|found| found.trace.period)
        .unwrap_or(args.period.as_secs_f64());
    let target = args.target.as_secs_f64();
    if args.overshoot <= args.target {
        bail!(
            "--overshoot {:?} is not above --target {:?}; it is the highest delay after a step",
            args.overshoot,
            args.target
        );
    }
    let overshoot = args.overshoot.as_secs_f64() / target - 1.0;
    let law = ControlLaw::from(args.law);
    let (goal, outcome) = match args.gains {
        Some(gains) => (None, Ok(Design::of(&plant, law, gains))),
        None => {
            let goal = |seconds: f64| Goal {
                overshoot,
                settling: seconds / period,
            };
            let reached = |goal: &Goal| design(&plant, law, *goal).is_ok();
            let goal = match args.settling_time {
                Some(time) => goal(time.as_secs_f64()),
                None => (SETTLING_S.map(goal).into_iter())
                    .find(reached)
                    .unwrap_or(goal(LONGEST_S)),
            };
            (Some(goal), design(&plant, law, goal))
        }
    };
    let answer = Results {
        identified: identified.as_ref(),
        plant: &plant,
        period,
        target: args.target,
        law,
        goal,
        design: outcome.as_ref().ok(),
        usable: !args.square_root,
    };
    let text = match args.json {
        true => show::json(&answer)?,
        false => show::text(&answer),
    };
    let notes = match &outcome {
        Ok(_) => String::new(),
        Err(error) => format!("error: {error}\n"),
    };
    Ok(Output {
        text,
        notes,
        ok: outcome.is_ok(),
    })
}

/// The settling times that are tried by default, s, until one is reached. The first is from Table 1
/// of Chronos.
const SETTLING_S: [f64; 8] = [10.0, 15.0, 20.0, 30.0, 45.0, 60.0, 90.0, 120.0];
/// The settling time that is tried if none of [`SETTLING_S`] is reached, s.
const LONGEST_S: f64 = 300.0;

fn identified(args: &SysidArgs, path: &std::path::Path) -> anyhow::Result<Found> {
    let (name, text) = text_of(path)?;
    let columns = Columns {
        delay: args.delay.clone(),
        backlog: args.backlog.clone(),
        time: args.time.clone(),
    };
    let trace: Trace = trace::read(&name, &text, &columns, args.period)?;
    let transform = match args.square_root {
        true => Transform::SquareRoot,
        false => Transform::None,
    };
    let fit = |order: usize| identify(&trace.segments, order, transform);
    let fits: Vec<Fit> = (1..=MAX_ORDER).map_while(|order| fit(order).ok()).collect();
    let chosen = match args.order {
        Some(order) => Some(fit(usize::from(order)).with_context(|| name.clone())?),
        None => choose_order(&fits).cloned(),
    };
    let Some(chosen) = chosen else {
        let error = fit(1).err().map_or_else(String::new, |e| e.to_string());
        bail!("{name}: {error}");
    };
    Ok(Found {
        trace,
        fits,
        chosen,
    })
}

#[cfg(test)]
mod tests;
