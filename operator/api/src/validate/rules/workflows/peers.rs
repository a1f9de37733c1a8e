//! `peers`: the processes whose rates, deadlines and progress are trusted.

use headgate_core::config::MAX_WORKFLOW_PEERS;

use super::super::{At, By, Field, Format, Table};

/// SPIFFE ids, no longer than the specification allows. They consist of all visible ASCII
/// characters but the star.
static PEER: Format = Format::new(
    2048,
    "^spiffe://[!-)+-~]+[*]?$",
    "a SPIFFE id, exact or with * at its end, such as spiffe://cluster.local/ns/shop/*",
);
pub(in crate::validate::rules) static FIELDS: Table = fields! {
    "" => Field::List(MAX_WORKFLOW_PEERS, "peers", By::Text),
    "[]" => Field::Text(&PEER),
};

pub(in crate::validate::rules) fn peers(given: &[String], at: &At<'_>) -> Vec<String> {
    at.count(given.len());
    for (i, peer) in given.iter().enumerate() {
        let at = at.item(i);
        if !PEER.is(peer) {
            let shown: String = peer.chars().take(80).collect();
            at.add(format!("{shown:?}; {}", PEER.right));
        } else if given.iter().take(i).any(|before| before == peer) {
            at.add("given twice; keep one");
        }
    }
    given.to_vec()
}
