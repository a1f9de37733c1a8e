//! The proxy's configurations, and which of them are in force.
//!
//! The proxy creates a configuration for each version of each listener. An edit adds a
//! configuration, and the old one is removed after the last of its streams, perhaps minutes later.
//! So the newest configuration is in force. But the newest configuration may be removed first,
//! because the proxy drops it if another part of its update fails. Then the newest remaining
//! configuration is in force again.
//!
//! One process may serve listeners with different policies, such as several Gateways. A
//! configuration has the name of its listener, and the newest configuration of each name is in
//! force. Without names, the newest of all configurations is in force.

use std::sync::Arc;

use crate::config::{Direction, FilterConfig};
use crate::engine::Prepared;

/// Configurations, oldest first.
#[derive(Debug, Clone, Default)]
pub struct Listeners(Vec<Listener>);

#[derive(Debug, Clone)]
struct Listener {
    id: u32,
    name: Arc<str>,
    direction: Direction,
    /// The configuration, or `None` if it was refused and no other was in force.
    config: Option<Arc<Prepared>>,
}

impl Listeners {
    /// Adds configuration `id` for `name` as the newest. The caller reuses `id` only after its
    /// removal.
    pub(super) fn configured(&mut self, (id, name): (u32, &str), config: Prepared) {
        let direction = config.config.direction;
        self.add((id, name), direction, Some(Arc::new(config)));
    }

    /// Adds `id`, whose configuration was refused although the proxy keeps the listener. The last
    /// valid configuration stays in force for the listener, even after the version of the listener
    /// that it belongs to is removed.
    pub(super) fn refused(&mut self, (id, name): (u32, &str), direction: Direction) {
        let good = (self.of(direction))
            .filter(|listener| *listener.name == *name)
            .find_map(|listener| listener.config.clone());
        self.add((id, name), direction, good);
    }

    fn add(
        &mut self,
        (id, name): (u32, &str),
        direction: Direction,
        config: Option<Arc<Prepared>>,
    ) {
        self.0.retain(|listener| listener.id != id);
        self.0.push(Listener {
            id,
            name: name.into(),
            direction,
            config,
        });
    }

    /// Removes `id` and returns its direction, or `None` if `id` is unknown.
    pub(super) fn gone(&mut self, id: u32) -> Option<Direction> {
        let at = self.0.iter().position(|listener| listener.id == id)?;
        Some(self.0.remove(at).direction)
    }

    /// Returns the newest configuration of `direction`. Unless its update fails, it outlives the
    /// streams of the older configurations.
    pub fn newest(&self, direction: Direction) -> Option<u32> {
        self.of(direction).map(|listener| listener.id).next()
    }

    /// Whether there are several configurations of `direction`.
    pub fn has_several(&self, direction: Direction) -> bool {
        self.of(direction).nth(1).is_some()
    }

    /// Returns the newest configuration of either direction.
    pub fn last(&self) -> Option<u32> {
        self.0.last().map(|listener| listener.id)
    }

    /// Returns the configurations in force for `direction` with their names, oldest first.
    pub(super) fn in_force(&self, direction: Direction) -> Vec<(&str, &Prepared)> {
        let mut in_force: Vec<(&str, &Prepared)> = Vec::new();
        for listener in self.of(direction) {
            let name: &str = &listener.name;
            if let Some(config) = &listener.config
                && in_force.iter().all(|(other, _)| *other != name)
            {
                in_force.push((name, config));
            }
        }
        in_force.reverse();
        in_force
    }

    /// Returns the configurations of [`Listeners::in_force`] in a form that can be compared.
    pub(super) fn configs(&self, direction: Direction) -> Vec<(&str, &FilterConfig)> {
        let in_force = self.in_force(direction).into_iter();
        in_force.map(|(name, p)| (name, &p.config)).collect()
    }

    /// Yields the policies of all configurations, whether in force or not.
    pub(super) fn policies(&self) -> impl Iterator<Item = &str> {
        let configs = self
            .0
            .iter()
            .filter_map(|listener| listener.config.as_ref());
        configs.flat_map(|prepared| {
            let config = &prepared.config;
            let stages = config.stages.iter().map(|stage| &stage.policy);
            let called = config.outbound.iter().map(|outbound| &outbound.policy);
            stages.chain(called).map(String::as_str)
        })
    }

    /// Yields the listeners of `direction`, newest first.
    fn of(&self, direction: Direction) -> impl Iterator<Item = &Listener> {
        let newest_first = self.0.iter().rev();
        newest_first.filter(move |listener| listener.direction == direction)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::MemoryHost;
    use Direction::{Inbound, Outbound};

    fn config(direction: Direction, revision: &str) -> Prepared {
        let config = FilterConfig {
            revision: revision.to_owned(),
            direction,
            ..FilterConfig::default()
        };
        Prepared::new(&MemoryHost::new(), config).unwrap()
    }

    /// Returns the name and the revision of each configuration in force.
    fn in_force(listeners: &Listeners, direction: Direction) -> String {
        let in_force = listeners.in_force(direction);
        let text = in_force
            .iter()
            .map(|(name, c)| format!("{name}{}", c.config.revision));
        text.collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn each_direction_has_its_newest_until_the_last_is_gone() {
        let mut listeners = Listeners::default();
        assert_eq!(listeners.newest(Inbound), None);
        listeners.configured((1, ""), config(Inbound, "a"));
        listeners.configured((5, ""), config(Inbound, "b"));
        listeners.configured((2, ""), config(Outbound, "c"));
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
        listeners.configured((1, ""), config(Inbound, "a"));
        listeners.configured((2, ""), config(Inbound, "b"));
        listeners.configured((3, ""), config(Inbound, "c"));
        listeners.gone(1);
        assert_eq!(in_force(&listeners, Inbound), "c");
        listeners.gone(3);
        assert_eq!(in_force(&listeners, Inbound), "b");
        assert_eq!(in_force(&listeners, Outbound), "");
        listeners.gone(2);
        assert_eq!(in_force(&listeners, Inbound), "");
    }

    #[test]
    fn a_refused_one_keeps_the_last_good_one() {
        let mut listeners = Listeners::default();
        listeners.refused((1, ""), Inbound);
        assert_eq!(in_force(&listeners, Inbound), "");
        listeners.configured((2, ""), config(Inbound, "a"));
        listeners.refused((3, ""), Inbound);
        listeners.gone(2);
        assert_eq!(listeners.newest(Inbound), Some(3));
        assert_eq!(in_force(&listeners, Inbound), "a");
    }

    #[test]
    fn each_name_has_one_in_force() {
        let mut listeners = Listeners::default();
        listeners.configured((1, "x"), config(Inbound, "1"));
        listeners.configured((2, "y"), config(Inbound, "2"));
        assert_eq!(in_force(&listeners, Inbound), "x1 y2");
        listeners.configured((3, "x"), config(Inbound, "3"));
        assert_eq!(in_force(&listeners, Inbound), "y2 x3");
        listeners.refused((4, "y"), Inbound);
        listeners.gone(2);
        assert_eq!(in_force(&listeners, Inbound), "x3 y2");
        listeners.gone(3);
        assert_eq!(in_force(&listeners, Inbound), "x1 y2");
        listeners.gone(4);
        assert_eq!(in_force(&listeners, Inbound), "x1");
    }
}
