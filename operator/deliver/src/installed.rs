//! The control planes that are installed, as far as their resources show.

use std::collections::{BTreeMap, BTreeSet};

use crate::adapter::Adapter;
use crate::settings::Settings;

/// The observed resources of other control planes.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Installed {
    /// The adapters whose kinds are watched and served.
    pub served: BTreeSet<Adapter>,
    /// `spec.controllerName` of each GatewayClass.
    pub classes: BTreeMap<String, String>,
}

impl Installed {
    /// Whether the adapter's kind is served.
    pub fn has(&self, adapter: Adapter) -> bool {
        self.served.contains(&adapter)
    }

    /// Whether Istio is installed. It is if one of its plugin kinds is served or, if only
    /// EnvoyFilters are watched, if EnvoyFilters are served.
    pub(crate) fn has_istio(&self, settings: &Settings) -> bool {
        let watches_plugins = settings.args.istio_native.is_none() || !settings.args.keep_leftovers;
        self.has(Adapter::Istio)
            || self.has(Adapter::IstioExtension)
            || !watches_plugins && self.has(Adapter::IstioNative)
    }
}
