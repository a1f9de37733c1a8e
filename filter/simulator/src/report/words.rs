//! Phrases that several reports use.

/// How many runs there were, of how many requests if that was asked for, and by which seeds.
#[must_use]
pub fn runs(seeds: u32, requests: Option<u64>, seed: u64) -> String {
    let requests = requests.map(|n| format!(" of {n} requests"));
    let requests = requests.unwrap_or_default();
    match seeds {
        1 => format!("1 run{requests}, seed {seed}"),
        _ => {
            let last = seed.saturating_add(u64::from(seeds) - 1);
            format!("averages of {seeds} runs{requests}, seeds {seed} to {last}")
        }
    }
}
