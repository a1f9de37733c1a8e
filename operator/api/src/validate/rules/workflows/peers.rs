//! `peers`: the processes whose rates, deadlines and progress are trusted.

use headgate_core::config::MAX_WORKFLOW_PEERS;

use super::super::At;
use crate::validate::schema::{Place, Rule};

/// The longest SPIFFE id (the specification's bound), bytes.
const MAX_ID: usize = 2048;
const SCHEME: &str = "spiffe://";
const RIGHT: &str =
    "a SPIFFE id, exact or with * at its end, such as spiffe://cluster.local/ns/shop/*";

pub(in crate::validate::rules) fn peers(given: &[String], at: &At<'_>) -> Vec<String> {
    at.at_most(MAX_WORKFLOW_PEERS, given.len(), "peers");
    for (i, peer) in given.iter().enumerate() {
        let at = at.item(i);
        if !is_peer(peer) {
            let shown: String = peer.chars().take(80).collect();
            at.add(format!("{shown:?}; {RIGHT}"));
        } else if given.iter().take(i).any(|before| before == peer) {
            at.add("given twice; keep one");
        }
    }
    given.to_vec()
}

fn is_peer(peer: &str) -> bool {
    let id = peer.strip_suffix('*').unwrap_or(peer);
    peer.len() <= MAX_ID
        && id.strip_prefix(SCHEME).is_some_and(|rest| {
            !rest.is_empty() && rest.bytes().all(|b| b.is_ascii_graphic() && b != b'*')
        })
}

pub(in crate::validate::rules) fn schema(list: &mut Place<'_>) {
    list.set_of_texts().max_items(MAX_WORKFLOW_PEERS);
    // All visible ASCII characters but the star.
    let rule = format!("self.matches('^{SCHEME}[!-)+-~]+[*]?$')");
    list.at("[]")
        .max_length(MAX_ID)
        .rule(Rule::quoted(rule, "self", RIGHT));
}
