//! Conversion of a filter configuration to Envoy's resource. The resource is a
//! `TypedExtensionConfig` around a Wasm filter, or around a dynamic module if the module is native.
//!
//! The plugin's configuration is a `StringValue` that contains JSON. The obvious choice would be a
//! `Struct`, which arrives as JSON according to the proto's documentation. But Envoy 1.40 passes
//! the binary message to the module (measured), and a `Struct` turns every integer into a double.

use std::path::Path;

use envoy_types::pb::envoy::config::core::v3::{
    AsyncDataSource, BackoffStrategy, DataSource, TypedExtensionConfig, async_data_source,
    data_source,
};
use envoy_types::pb::envoy::extensions::dynamic_modules::v3::DynamicModuleConfig;
use envoy_types::pb::envoy::extensions::filters::http::dynamic_modules::v3::DynamicModuleFilter;
use envoy_types::pb::envoy::extensions::filters::http::wasm::v3::Wasm;
use envoy_types::pb::envoy::extensions::wasm::v3::{
    FailurePolicy, PluginConfig, ReloadConfig, VmConfig, plugin_config,
};
use envoy_types::pb::google::protobuf::{Any, Duration, StringValue};
use headgate_core::config::FilterConfig;
use prost::{Message, Name};
use serde_json::{Value, json};

use crate::digest::hash;
use crate::module::Kind;

/// The id of the plugin in Envoy's logs. Together with the code, it identifies the VM. All slots of
/// a proxy use the same id, so that they share state.
const PLUGIN: &str = "headgate";
const RUNTIME: &str = "envoy.wasm.runtime.v8";
/// The delay before a trapped VM is restarted, in ms. It doubles up to [`RELOAD_MAX_MS`].
const RELOAD_BASE_MS: u32 = 100;
/// The longest delay before a trapped VM is restarted, in ms.
const RELOAD_MAX_MS: u32 = 1_000;

/// One named resource, encoded.
#[derive(Debug, Clone, PartialEq)]
pub struct Resource {
    /// The name of the filter slot.
    pub name: String,
    /// The hash of the content. It is equal for equal configuration and module, across restarts.
    pub version: String,
    /// The `TypedExtensionConfig`.
    pub any: Any,
}

impl Resource {
    /// Returns the resource with which slot `name` runs `module` with `config`.
    pub fn new(config: &FilterConfig, name: &str, module: &Path) -> Self {
        let extension = TypedExtensionConfig {
            name: name.to_owned(),
            typed_config: Some(match Kind::of(module) {
                Kind::Native => any(&native_filter(config, module)),
                Kind::Wasm => any(&wasm_filter(config, module)),
            }),
        };
        let any = any(&extension);
        Self {
            name: name.to_owned(),
            version: hash(&any.value),
            any,
        }
    }
}

fn any<M: Message + Name>(message: &M) -> Any {
    Any {
        type_url: M::type_url(),
        value: message.encode_to_vec(),
    }
}

/// Returns the configuration in the module's format. Serialization of [`FilterConfig`] can't fail,
/// because it consists of plain structs with string keys. If it did, the result would be the empty
/// text, the configuration that admits every request.
fn plugin_configuration(config: &FilterConfig) -> String {
    serde_json::to_string(config).unwrap_or_default()
}

/// The prefix of the native filter's stats. It equals the Wasm filter's, so that dashboards and
/// alerts need only one name.
const METRICS_NAMESPACE: &str = "wasmcustom";

/// Returns the configuration as a message.
fn encoded(config: &FilterConfig) -> Any {
    any(&StringValue {
        value: plugin_configuration(config),
    })
}

fn native_filter(config: &FilterConfig, module: &Path) -> DynamicModuleFilter {
    DynamicModuleFilter {
        dynamic_module_config: Some(DynamicModuleConfig {
            // The module is never unloaded, because its learned state must outlive a listener.
            do_not_close: true,
            metrics_namespace: METRICS_NAMESPACE.to_owned(),
            module: Some(local(module)),
            ..DynamicModuleConfig::default()
        }),
        filter_name: PLUGIN.to_owned(),
        filter_config: Some(encoded(config)),
        ..DynamicModuleFilter::default()
    }
}

/// Returns the data source of a local file.
fn local(module: &Path) -> AsyncDataSource {
    AsyncDataSource {
        specifier: Some(async_data_source::Specifier::Local(DataSource {
            specifier: Some(data_source::Specifier::Filename(
                module.display().to_string(),
            )),
            ..DataSource::default()
        })),
    }
}

fn wasm_filter(config: &FilterConfig, module: &Path) -> Wasm {
    Wasm {
        config: Some(PluginConfig {
            name: PLUGIN.to_owned(),
            root_id: PLUGIN.to_owned(),
            configuration: Some(encoded(config)),
            failure_policy: FailurePolicy::FailReload as i32,
            reload_config: Some(ReloadConfig {
                backoff: Some(BackoffStrategy {
                    base_interval: Some(millis(RELOAD_BASE_MS)),
                    max_interval: Some(millis(RELOAD_MAX_MS)),
                }),
            }),
            vm: Some(plugin_config::Vm::VmConfig(VmConfig {
                vm_id: PLUGIN.to_owned(),
                runtime: RUNTIME.to_owned(),
                code: Some(local(module)),
                ..VmConfig::default()
            })),
            ..PluginConfig::default()
        }),
    }
}

fn millis(ms: u32) -> Duration {
    Duration {
        seconds: i64::from(ms / 1_000),
        nanos: (ms % 1_000) as i32 * 1_000_000,
    }
}

/// Returns the same resource in protobuf's JSON form, for `headgate render` and files that Envoy
/// watches (`path_config_source`, wrapped in a `DiscoveryResponse`).
pub fn ecds_json(config: &FilterConfig, name: &str, module: &Path) -> Value {
    if Kind::of(module) == Kind::Native {
        return json!({
            "@type": crate::ECDS_TYPE_URL,
            "name": name,
            "typed_config": {
                "@type": DynamicModuleFilter::type_url(),
                "dynamic_module_config": {
                    "module": {"local": {"filename": module.display().to_string()}},
                    "do_not_close": true,
                    "metrics_namespace": METRICS_NAMESPACE,
                },
                "filter_name": PLUGIN,
                "filter_config": {"@type": StringValue::type_url(), "value": plugin_configuration(config)},
            },
        });
    }
    let seconds = |ms: u32| format!("{}s", f64::from(ms) / 1_000.0);
    json!({
        "@type": crate::ECDS_TYPE_URL,
        "name": name,
        "typed_config": {
            "@type": Wasm::type_url(),
            "config": {
                "name": PLUGIN,
                "root_id": PLUGIN,
                "vm_config": {
                    "vm_id": PLUGIN,
                    "runtime": RUNTIME,
                    "code": {"local": {"filename": module.display().to_string()}},
                },
                "configuration": {
                    "@type": StringValue::type_url(),
                    "value": plugin_configuration(config),
                },
                "failure_policy": FailurePolicy::FailReload.as_str_name(),
                "reload_config": {
                    "backoff": {
                        "base_interval": seconds(RELOAD_BASE_MS),
                        "max_interval": seconds(RELOAD_MAX_MS),
                    },
                },
            },
        },
    })
}

/// Returns a complete `DiscoveryResponse` for a file that Envoy reads by `path_config_source`. Its
/// version is the resource's.
pub fn discovery_json(config: &FilterConfig, name: &str, module: &Path) -> Value {
    json!({
        "version_info": Resource::new(config, name, module).version,
        "type_url": crate::ECDS_TYPE_URL,
        "resources": [ecds_json(config, name, module)],
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(revision: &str) -> FilterConfig {
        FilterConfig {
            revision: revision.to_owned(),
            ..FilterConfig::default()
        }
    }

    #[test]
    fn the_version_follows_the_content() {
        let a = Resource::new(&config("1"), "headgate", Path::new("/m/a.wasm"));
        assert_eq!(
            a.version,
            Resource::new(&config("1"), "headgate", Path::new("/m/a.wasm")).version
        );
        assert_ne!(
            a.version,
            Resource::new(&config("2"), "headgate", Path::new("/m/a.wasm")).version
        );
        assert_ne!(
            a.version,
            Resource::new(&config("1"), "headgate", Path::new("/m/b.wasm")).version
        );
        assert_ne!(
            a.version,
            Resource::new(&config("1"), "headgate-2", Path::new("/m/a.wasm")).version
        );
    }

    #[test]
    fn the_module_reads_back_the_configuration() {
        let resource = Resource::new(&config("abc"), "headgate", Path::new("/m/a.wasm"));
        assert_eq!(resource.any.type_url, crate::ECDS_TYPE_URL);
        let extension = TypedExtensionConfig::decode(&resource.any.value[..]).unwrap();
        let wasm = Wasm::decode(&extension.typed_config.unwrap().value[..]).unwrap();
        let plugin = wasm.config.unwrap();
        let text = StringValue::decode(&plugin.configuration.unwrap().value[..])
            .unwrap()
            .value;
        assert_eq!(
            FilterConfig::from_json(text.as_bytes()).unwrap(),
            config("abc")
        );
        let json = ecds_json(&config("abc"), "headgate", Path::new("/m/a.wasm"));
        assert_eq!(
            json["typed_config"]["config"]["configuration"]["value"],
            Value::String(text)
        );
        assert_eq!(
            json["typed_config"]["config"]["reload_config"]["backoff"]["base_interval"],
            Value::String("0.1s".into())
        );
    }

    #[test]
    fn a_shared_object_becomes_a_dynamic_module() {
        let path = Path::new("/m/a.so");
        let resource = Resource::new(&config("abc"), "headgate", path);
        let extension = TypedExtensionConfig::decode(&resource.any.value[..]).unwrap();
        let typed = extension.typed_config.unwrap();
        assert_eq!(typed.type_url, DynamicModuleFilter::type_url());
        let filter = DynamicModuleFilter::decode(&typed.value[..]).unwrap();
        let module = filter.dynamic_module_config.unwrap();
        assert_eq!(module.module, Some(local(path)));
        assert_eq!(module.metrics_namespace, METRICS_NAMESPACE);
        let text = StringValue::decode(&filter.filter_config.unwrap().value[..])
            .unwrap()
            .value;
        let read = FilterConfig::from_json(text.as_bytes()).unwrap();
        assert_eq!(read, config("abc"));
        let json = ecds_json(&config("abc"), "headgate", path);
        let filter = &json["typed_config"];
        assert_eq!(filter["@type"], DynamicModuleFilter::type_url());
        assert_eq!(filter["filter_config"]["value"], Value::String(text));
        let module = &filter["dynamic_module_config"]["module"];
        assert_eq!(module["local"]["filename"], "/m/a.so");
    }
}
