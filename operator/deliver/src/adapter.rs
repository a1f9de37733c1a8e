//! The kinds of objects that deliveries write.

use kube::core::{ApiResource, GroupVersionKind};
use serde_json::Value;

/// Defines [`Adapter`] and the properties of each adapter from one list.
macro_rules! adapters {
    ($($(#[$doc:meta])+ $adapter:ident { $($field:ident: $value:expr,)+ })+) => {
        /// The writer of objects of one kind.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Adapter {
            $($(#[$doc])+ $adapter,)+
        }

        impl Adapter {
            /// All adapters.
            pub const ALL: [Self; [$(Self::$adapter),+].len()] = [$(Self::$adapter),+];

            const fn properties(self) -> Properties {
                match self {
                    $(Self::$adapter => Properties { $($field: $value),+ },)+
                }
            }
        }
    };
}

/// The properties of an adapter.
struct Properties {
    /// The adapter's name in labels.
    name: &'static str,
    /// The operator's argument that turns the adapter on, or another condition, in one word, that
    /// `headgate check` evaluates.
    condition: &'static str,
    /// The group, version and plural of the adapter's objects.
    resource: (&'static str, &'static str, &'static str),
    kind: &'static str,
    /// Whether an object with this spec is for the proxies of a Gateway.
    of_gateway: fn(&Value) -> bool,
}

adapters! {
    /// `ConfigMap` with a `DiscoveryResponse`.
    ConfigMap {
        name: "config-map",
        condition: "deliver-config-maps",
        resource: ("", "v1", "configmaps"),
        kind: "ConfigMap",
        of_gateway: |_| false,
    }
    /// `EnvoyExtensionPolicy`.
    EnvoyGateway {
        name: "envoy-gateway",
        condition: "envoy-gateway",
        resource: ("gateway.envoyproxy.io", "v1alpha1", "envoyextensionpolicies"),
        kind: "EnvoyExtensionPolicy",
        of_gateway: |_| true,
    }
    /// `WasmPlugin`.
    Istio {
        name: "istio",
        condition: "istio-wasm",
        resource: ("extensions.istio.io", "v1alpha1", "wasmplugins"),
        kind: "WasmPlugin",
        of_gateway: |spec| spec["targetRefs"].is_array(),
    }
    /// `TrafficExtension`.
    IstioExtension {
        name: "istio-extension",
        condition: "istio-wasm",
        resource: ("extensions.istio.io", "v1alpha1", "trafficextensions"),
        kind: "TrafficExtension",
        of_gateway: |spec| spec["targetRefs"].is_array(),
    }
    /// `EnvoyFilter` with the native filter.
    IstioNative {
        name: "istio-native",
        condition: "istio-native",
        resource: ("networking.istio.io", "v1alpha3", "envoyfilters"),
        kind: "EnvoyFilter",
        of_gateway: |spec| spec["configPatches"][0]["match"]["context"] == "GATEWAY",
    }
}

impl Adapter {
    /// Whether Istio reads the adapter's objects. Istio doesn't report whether a proxy has accepted
    /// them.
    #[must_use]
    pub const fn is_of_istio(self) -> bool {
        matches!(self, Self::Istio | Self::IstioExtension | Self::IstioNative)
    }

    /// Whether the adapter's objects are plugins, whose module Istio's agents fetch.
    #[must_use]
    pub const fn is_plugin(self) -> bool {
        matches!(self, Self::Istio | Self::IstioExtension)
    }

    /// Returns the operator's argument that turns the adapter on, or another condition, in one
    /// word, that `headgate check` evaluates.
    #[must_use]
    pub const fn condition(self) -> &'static str {
        self.properties().condition
    }

    /// Returns the adapter's name in labels.
    #[must_use]
    pub(crate) const fn name(self) -> &'static str {
        self.properties().name
    }

    /// Returns the kind of the adapter's objects.
    #[must_use]
    pub const fn kind(self) -> &'static str {
        self.properties().kind
    }

    /// Whether `object` is for the proxies of a Gateway.
    pub(crate) fn is_of_gateway(self, object: &Value) -> bool {
        (self.properties().of_gateway)(&object["spec"])
    }

    /// Returns the API resource of the adapter's objects.
    #[must_use]
    pub fn resource(self) -> ApiResource {
        let (group, version, plural) = self.properties().resource;
        let kind = GroupVersionKind::gvk(group, version, self.kind());
        ApiResource::from_gvk_with_plural(&kind, plural)
    }
}
