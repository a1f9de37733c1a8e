//! `--experiment tenants`: two tenants, of which one has prompts a hundred times as long as the
//! other's.
//!
//! Each tenant has more requests in progress than the server has slots, so the queue's turns
//! determine each tenant's share. The charge for a prompt is the length of its request's body,
//! which also contains the parameters.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Result, ensure};
use serde::Serialize;
use serde_json::{Value, json};

use super::{Bench, Options, SLOTS, answer, clients, ended_in, request, token_times};
use crate::bench::lab::Protection;
use crate::bench::native_filters;
use crate::bench::refusals;
use crate::bench::table::{Table, percent};
use crate::kube::programs;
use crate::load::{self, RequestType, Running, Sample};
use crate::policy;
use crate::quantiles::Quantiles;

/// The header that names a request's tenant.
const TENANT: &str = "x-gateway-inference-fairness-id";
const TENANTS: [Tenant; 2] = [
    Tenant {
        name: "short",
        prompt: 16,
    },
    Tenant {
        name: "long",
        prompt: 1_600,
    },
];
/// Length of an answer in tokens.
const OUTPUT: usize = 32;
/// The number of clients of each tenant. With so many, the tenant always has requests in the queue.
const CLIENTS: usize = 2 * SLOTS;
/// The charges for a byte of a request's body, which is a token of the model's vocabulary, and for
/// a token of an answer.
const CHARGES: [f64; 2] = [1.0, 2.0];

/// One of the tenants. All its requests are equal.
struct Tenant {
    name: &'static str,
    /// Length of a prompt in tokens.
    prompt: usize,
}

/// The results of the experiment.
#[derive(Debug, Clone, Serialize)]
pub struct Tenants {
    runs: Vec<Run>,
}

/// One run: both tenants behind one protection.
#[derive(Debug, Clone, Serialize)]
struct Run {
    row: &'static str,
    round: usize,
    /// The results by tenant, in the order of [`TENANTS`].
    tenants: [Measured; TENANTS.len()],
}

/// The results of one tenant in a [`Run`].
#[derive(Debug, Clone, Serialize)]
struct Measured {
    name: &'static str,
    answers_per_s: f64,
    /// Tokens of prompts and answers per second.
    tokens_per_s: f64,
    /// The charges of the policy for these tokens, per second.
    charged_per_s: f64,
    /// The tenant's part of all charges, ratio 0..=1.
    share: f64,
    ttft_ms: Quantiles,
    refused_by: BTreeMap<String, u64>,
}

/// Runs the experiment. `progress` gets a line for each run.
///
/// # Errors
/// The errors of [`super::run`].
pub fn tenants(options: &Options, mut progress: impl FnMut(&str)) -> Result<Tenants> {
    programs::llama()?;
    super::leave_core()?;
    let bench = Bench::prepare(options)?;
    let mut rows = rows();
    if !options.only.is_empty() {
        rows.retain(|row| options.only.iter().any(|name| name == row.name()));
    }
    let mut runs = Vec::new();
    for round in 1..=options.rounds {
        for row in &rows {
            let run = Run {
                row: row.name(),
                round,
                tenants: bench.share(row)?,
            };
            progress(&format!("round {round}, {}: {}", run.row, run.words()));
            runs.push(run);
        }
    }
    Ok(Tenants { runs })
}

/// Returns the protections to compare.
fn rows() -> Vec<Protection> {
    let (wasm, native) = (Protection::headgate, Protection::native_headgate);
    let (time, tokens) = (by_class(false), by_class(true));
    let workflows = by_workflow();
    vec![
        Protection::Native(native_filters::plain()),
        wasm("wasm-time", "turns by slots' time, Wasm", time.clone()),
        native("native-time", "turns by slots' time, native", time),
        wasm("wasm-tokens", "turns by tokens, Wasm", tokens.clone()),
        native("native-tokens", "turns by tokens, native", tokens),
        wasm(
            "wasm-workflows",
            "turns of workflows by tokens, Wasm",
            workflows.clone(),
        ),
        native(
            "native-workflows",
            "turns of workflows by tokens, native",
            workflows,
        ),
    ]
}

/// Returns a policy whose queue serves flows in turns, by tokens or by slot time. It refuses no
/// request.
fn turns(by: &str, tokens: bool) -> Value {
    let size = json!({"size": {"header": "content-length"}});
    let mut policy = policy::policy(SLOTS, &[json!({"name": "default", "cost": size})]);
    let mut turns = json!({"by": by});
    if tokens {
        turns["tokens"] = json!({"input": CHARGES[0], "output": CHARGES[1]});
    }
    policy["spec"]["strategy"] = json!({"type": "MaxQueueLength"});
    policy["spec"]["queue"] = json!({"discipline": "WFQ", "wfq": turns, "timeout": "60s"});
    policy
}

/// Returns a policy whose tenants are classes.
fn by_class(tokens: bool) -> Value {
    let mut policy = turns("Class", tokens);
    let [short, long] = TENANTS.map(|tenant| tenant.name);
    let header = json!({"name": TENANT, "value": short});
    policy["spec"]["classes"] = json!([
        {"name": short, "matches": [{"headers": [header]}]},
        {"name": long},
    ]);
    policy
}

/// Returns a policy whose tenants are workflows, and whose queue takes turns by tokens. With such
/// turns, the slots don't limit a workflow's rate, so each workflow's part of the server depends
/// only on the turns.
fn by_workflow() -> Value {
    let mut policy = turns("Workflow", true);
    policy["spec"]["workflows"] = json!({
        "identifyBy": [{"type": "Header", "header": {"name": TENANT}}],
    });
    policy
}

impl Tenant {
    fn request(&self) -> RequestType {
        request(self.name, self.prompt, OUTPUT).header(TENANT, self.name)
    }

    /// Returns the results of the answers that ended in `[from, to)`, without the share.
    fn measured(&self, samples: &[Sample], from: Duration, to: Duration) -> Measured {
        let answers: Vec<&Sample> = ended_in(samples, from, to).collect();
        let streams = answers.iter().filter_map(|sample| answer(sample));
        let output: f64 = streams.map(|stream| f64::from(stream.tokens)).sum();
        let of_prompts = |length: usize| (length * answers.len()) as f64;
        let input = of_prompts(self.request().body.len());
        let seconds = (to - from).as_secs_f64();
        Measured {
            name: self.name,
            answers_per_s: answers.len() as f64 / seconds,
            tokens_per_s: (of_prompts(self.prompt) + output) / seconds,
            charged_per_s: (CHARGES[0] * input + CHARGES[1] * output) / seconds,
            share: 0.0,
            ttft_ms: token_times(answers.into_iter()).0,
            refused_by: BTreeMap::new(),
        }
    }
}

impl Bench<'_> {
    /// Runs the clients of both tenants in front of a fresh server behind a fresh proxy.
    fn share(&self, row: &Protection) -> Result<[Measured; TENANTS.len()]> {
        let server = self.server(SLOTS)?;
        let lab = self.lab(row, &server)?;
        let from = self.options.warmup;
        let to = from + self.options.measured;
        let start = |tenant: &Tenant| {
            let mut spec = clients(lab.addr(), vec![tenant.request()], CLIENTS, to);
            spec.warmup = from;
            load::start(spec)
        };
        let [short, long] = &TENANTS;
        let loads = [start(short)?, start(long)?];
        let measured = |tenant: &Tenant, load: Running| -> Result<Measured> {
            let (report, samples) = load.wait_with_samples()?;
            let refused_by = report.total.refused_by;
            Ok(Measured {
                refused_by,
                ..tenant.measured(&samples, from, to)
            })
        };
        let [of_short, of_long] = loads;
        let mut both = [measured(short, of_short)?, measured(long, of_long)?];
        let all: f64 = both.iter().map(|tenant| tenant.charged_per_s).sum();
        ensure!(all > 0.0, "{}: no answers", row.name());
        for tenant in &mut both {
            tenant.share = tenant.charged_per_s / all;
        }
        Ok(both)
    }
}

impl Run {
    /// Returns a summary for a line of progress.
    fn words(&self) -> String {
        let tenants = self.tenants.iter().map(|tenant| {
            format!(
                "{} {} of the charges, {:.1} answers/s",
                tenant.name,
                percent(tenant.share),
                tenant.answers_per_s
            )
        });
        let mut words: Vec<String> = tenants.collect();
        let refused = self.refusals();
        if !refused.is_empty() {
            words.push(format!("refused: {refused}"));
        }
        words.join("; ")
    }

    /// Returns the refusals by tenant and reason as text.
    fn refusals(&self) -> String {
        let tenants = self.tenants.iter();
        refusals::words(tenants.map(|tenant| (tenant.name, &tenant.refused_by)))
    }
}

impl Tenants {
    /// Returns a table, with the refusals below the table. The table shows the run with the median
    /// share of each row.
    pub fn table(&self) -> String {
        let mut table = Table::new(&[
            "",
            "tenant",
            "share",
            "charged/s",
            "tokens/s",
            "answers/s",
            "TTFT p50, ms",
        ]);
        let mut refused = String::new();
        for row in rows() {
            let of_row = self.runs.iter().filter(|run| run.row == row.name());
            let mut runs: Vec<&Run> = of_row.collect();
            runs.sort_by(|left, right| left.tenants[0].share.total_cmp(&right.tenants[0].share));
            let Some(median) = runs.get(runs.len() / 2) else {
                continue;
            };
            let mut title = row.title().to_owned();
            for (at, tenant) in median.tenants.iter().enumerate() {
                let mut share = percent(tenant.share);
                if runs.len() > 1 {
                    let shares = || runs.iter().map(|run| run.tenants[at].share);
                    let (least, most) = (
                        shares().fold(f64::INFINITY, f64::min),
                        shares().fold(0.0, f64::max),
                    );
                    share += &format!(" ({}–{})", percent(least), percent(most));
                }
                table.row([
                    std::mem::take(&mut title),
                    tenant.name.to_owned(),
                    share,
                    format!("{:.0}", tenant.charged_per_s),
                    format!("{:.0}", tenant.tokens_per_s),
                    format!("{:.1}", tenant.answers_per_s),
                    format!("{:.0}", tenant.ttft_ms.p50),
                ]);
            }
            let words = median.refusals();
            if !words.is_empty() {
                refused += &format!("  {} refused: {words}\n", row.name());
            }
        }
        format!(
            "\nTwo tenants with {CLIENTS} clients each; charges {} for each byte of a request and {} \
             for each token of an answer.\n{table}{refused}",
            CHARGES[0], CHARGES[1]
        )
    }
}

#[cfg(test)]
mod tests {
    use super::super::CONTEXT;
    use super::super::tests::{assert_valid, sample};
    use super::*;
    use crate::load::Ended;

    #[test]
    fn the_policies_are_valid() {
        rows().iter().for_each(assert_valid);
    }

    #[test]
    fn one_prompt_is_a_hundred_times_as_long_as_the_other_and_fits_into_a_slot() {
        let [short, long] = TENANTS;
        assert_eq!(long.prompt, 100 * short.prompt);
        // The tokenizer adds a begin token and a space of up to three bytes.
        assert!(long.prompt + OUTPUT + 4 <= CONTEXT);
    }

    #[test]
    fn a_tenant_is_charged_for_the_answers_that_end_in_the_measured_time() {
        let second = Duration::from_secs(1);
        let samples = [
            sample(900, 99, Ended::Ok),
            sample(0, 1_000, Ended::Ok),
            sample(2_000, 500, Ended::Ok),
            sample(2_500, 500, Ended::Ok),
            sample(1_500, 10, Ended::Refused),
        ];
        let [_, long] = TENANTS;
        let measured = long.measured(&samples, second, second * 3);
        // Each answer has 11 tokens.
        assert_eq!(measured.answers_per_s, 1.0);
        assert_eq!(measured.tokens_per_s, 1_611.0);
        let body = long.request().body.len() as f64;
        assert_eq!(measured.charged_per_s, body + 22.0);
        assert_eq!(measured.ttft_ms.count, 2);
    }
}
