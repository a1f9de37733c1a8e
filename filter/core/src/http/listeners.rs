//! The configurations that the proxy has, and which of them is in force.
//!
//! The proxy makes a configuration for each version of each listener. An edit adds one; the old one goes with the last of
//! its streams, minutes later perhaps. So the newest counts. But the newest may go first: the proxy drops it where
//! another part of its update fails. Then the newest that is left is in force again.

use std::sync::Arc;

use crate::config::{Direction, FilterConfig};

/// Configurations, oldest first.
#[derive(Debug, Clone, Default)]
pub struct Listeners(Vec<Listener>);

#[derive(Debug, Clone)]
struct Listener {
    id: u32,
    direction: Direction,
    /// `None`: it was refused, and no other was in force.
    config: Option<Arc<FilterConfig>>,
}

impl Listeners {
    /// Adds configuration `id`, which is the newest from now on. `id` is used again only after it went.
    pub(super) fn configured(&mut self, id: u32, config: FilterConfig) {
        self.add(id, config.direction, Some(Arc::new(config)));
    }

    /// Adds `id`, whose configuration was refused while the proxy keeps the listener: the last good one stays in force for
    /// it, also when the listener that brought that one goes.
    pub(super) fn refused(&mut self, id: u32, direction: Direction) {
        let good = self.in_force(direction).cloned();
        self.add(id, direction, good);
    }

    fn add(&mut self, id: u32, direction: Direction, config: Option<Arc<FilterConfig>>) {
        self.0.retain(|listener| listener.id != id);
        self.0.push(Listener {
            id,
            direction,
            config,
        });
    }

    /// Removes `id` and returns its direction.
    pub(super) fn gone(&mut self, id: u32) -> Option<Direction> {
        let at = self.0.iter().position(|listener| listener.id == id)?;
        Some(self.0.remove(at).direction)
    }

    /// The newest of `direction`: it outlives the streams of the older ones, unless its update fails.
    #[must_use]
    pub fn newest(&self, direction: Direction) -> Option<u32> {
        self.of(direction).map(|listener| listener.id).next()
    }

    /// The newest of all.
    #[must_use]
    pub fn last(&self) -> Option<u32> {
        self.0.last().map(|listener| listener.id)
    }

    /// The configuration in force for `direction`.
    pub(super) fn in_force(&self, direction: Direction) -> Option<&Arc<FilterConfig>> {
        self.of(direction)
            .find_map(|listener| listener.config.as_ref())
    }

    /// The listeners of `direction`, newest first.
    fn of(&self, direction: Direction) -> impl Iterator<Item = &Listener> {
        let newest_first = self.0.iter().rev();
        newest_first.filter(move |listener| listener.direction == direction)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Direction::{Inbound, Outbound};

    fn config(direction: Direction, revision: &str) -> FilterConfig {
        FilterConfig {
            revision: revision.to_owned(),
            direction,
            ..FilterConfig::default()
        }
    }

    fn revision(listeners: &Listeners, direction: Direction) -> Option<&str> {
        let config = listeners.in_force(direction);
        config.map(|config| config.revision.as_str())
    }

    #[test]
    fn each_direction_has_its_newest_until_the_last_is_gone() {
        let mut listeners = Listeners::default();
        assert_eq!(listeners.newest(Inbound), None);
        listeners.configured(1, config(Inbound, "a"));
        listeners.configured(5, config(Inbound, "b"));
        listeners.configured(2, config(Outbound, "c"));
        assert_eq!(listeners.newest(Inbound), Some(5));
        assert_eq!(listeners.newest(Outbound), Some(2));
        assert_eq!(listeners.last(), Some(2));
        assert_eq!(listeners.gone(1), Some(Inbound));
        assert_eq!(listeners.gone(1), None);
        assert_eq!(listeners.newest(Inbound), Some(5));
        assert_eq!(listeners.gone(5), Some(Inbound));
        assert_eq!(listeners.newest(Inbound), None);
        assert_eq!(listeners.newest(Outbound), Some(2));
    }

    #[test]
    fn the_newest_that_is_left_is_in_force() {
        let mut listeners = Listeners::default();
        listeners.configured(1, config(Inbound, "a"));
        listeners.configured(2, config(Inbound, "b"));
        listeners.configured(3, config(Inbound, "c"));
        listeners.gone(1);
        assert_eq!(revision(&listeners, Inbound), Some("c"));
        listeners.gone(3);
        assert_eq!(revision(&listeners, Inbound), Some("b"));
        assert_eq!(revision(&listeners, Outbound), None);
        listeners.gone(2);
        assert_eq!(revision(&listeners, Inbound), None);
    }

    #[test]
    fn a_refused_one_keeps_the_last_good_one() {
        let mut listeners = Listeners::default();
        listeners.refused(1, Inbound);
        assert_eq!(revision(&listeners, Inbound), None);
        listeners.configured(2, config(Inbound, "a"));
        listeners.refused(3, Inbound);
        listeners.gone(2);
        assert_eq!(listeners.newest(Inbound), Some(3));
        assert_eq!(revision(&listeners, Inbound), Some("a"));
    }
}
