//! Phrases that several reports use.

/// Returns a phrase with the number of runs, their size if `requests` is set, and their seeds.
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
