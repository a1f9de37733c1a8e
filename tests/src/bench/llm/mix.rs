//! The requests of `llm`, and their objectives. The simulator's tests include this file.

/// The number of requests that the server processes at once, unless a row sets another.
pub(crate) const SLOTS: usize = 8;

/// A type of request. Prompts and answers have a quarter of their usual lengths, because the server
/// of this benchmark is slow.
pub(crate) struct Kind {
    pub(crate) name: &'static str,
    /// Share of the requests.
    pub(crate) share: f64,
    /// Mean length of a prompt in tokens.
    pub(crate) prompt: usize,
    /// Mean length of an answer in tokens.
    pub(crate) output: usize,
    /// The objective for TTFT, as a multiple of the 90th percentile with all slots busy and no
    /// queue.
    pub(crate) patience: f64,
}

pub(crate) const MIX: [Kind; 3] = [
    Kind {
        name: "chat",
        share: 0.7,
        prompt: 64,
        output: 32,
        patience: 2.0,
    },
    Kind {
        name: "rag",
        share: 0.15,
        prompt: 1_024,
        output: 64,
        patience: 2.0,
    },
    Kind {
        name: "batch",
        share: 0.15,
        prompt: 256,
        output: 128,
        patience: 8.0,
    },
];

/// The sizes within a type: their lengths of prompt and answer, as multiples of the means. All
/// sizes are equally likely. A long prompt doesn't imply a long answer.
pub(crate) const SIZES: [(f64, f64); 4] = [(0.4, 1.1), (0.7, 0.4), (1.1, 1.8), (1.8, 0.7)];

/// The objective for TPOT, as a multiple of the 90th percentile with all slots busy.
pub(crate) const TPOT_PATIENCE: f64 = 1.5;

/// Tokens that the server's tokenizer adds to a prompt: a begin token, and the three bytes of a
/// space.
const BEGIN: usize = 4;

/// Returns the tokens of prompt and answer of a request of a type, with lengths as these multiples
/// of the means.
pub(crate) fn tokens(kind: usize, (prompt, output): (f64, f64)) -> (u32, u32) {
    let kind = &MIX[kind];
    let prompt = times_of(kind.prompt, prompt) + BEGIN;
    (prompt as u32, times_of(kind.output, output) as u32)
}

/// Returns the indexes of the type and of the size at this part of the mix, from 0 to 1.
pub(crate) fn at(part: f64) -> (usize, usize) {
    let mut from = 0.0;
    for (index, kind) in MIX.iter().enumerate() {
        let size = (part - from) / kind.share * SIZES.len() as f64;
        if size < SIZES.len() as f64 {
            return (index, size.max(0.0) as usize);
        }
        from += kind.share;
    }
    (MIX.len() - 1, SIZES.len() - 1)
}

/// Requests of one type and size.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Demand {
    /// The type's index in [`MIX`].
    pub(crate) kind: usize,
    /// The server's time for a request, s.
    pub(crate) cost: f64,
    /// Arrival rate, requests/s.
    pub(crate) per_second: f64,
}

/// Returns the largest possible number of answers per second, by type. The costs of all answers sum
/// to at most one second per second, and the cheapest requests are answered first.
pub(crate) fn most_answers(mut demands: Vec<Demand>) -> [f64; MIX.len()] {
    demands.sort_by(|left, right| left.cost.total_cmp(&right.cost));
    let (mut time, mut answered) = (1.0_f64, [0.0; MIX.len()]);
    for demand in demands {
        let taken = demand.per_second.min(time / demand.cost);
        time -= taken * demand.cost;
        answered[demand.kind] += taken;
    }
    answered
}

/// Returns `factor` times the mean length, in tokens.
pub(crate) fn times_of(mean: usize, factor: f64) -> usize {
    (mean as f64 * factor).round() as usize
}
