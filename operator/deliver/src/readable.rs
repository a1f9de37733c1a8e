//! Tolerant parsing of objects that users write.
//!
//! A list is parsed as a whole, so one object that can't be parsed hides the objects of all
//! namespaces. A user may write such an object. The API server accepts `metadata.managedFields` in
//! an update, with times up to the end of the year 9999, and `jiff` can't represent its last two
//! days. It also stores content that is nested deeper than the 128 levels that `serde_json` parses,
//! in `metadata.managedFields` and in schemaless fields of custom resources.
//!
//! So managed fields, and content nested deeper than [`LEVELS`], are skipped. `serde_json` skips a
//! value without recursion. The operator reads neither of them.

use std::borrow::Cow;
use std::fmt;

use kube::api::ListParams;
use kube::core::{ObjectList, ObjectMeta};
use kube::{Api, Resource};
use serde::Deserialize;
use serde::de::{
    DeserializeOwned, DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess,
    Visitor,
};
use serde_json::{Map, Value};

/// The number of nested levels that are read. The object itself is the first level. The list or
/// event that contains it has further levels.
const LEVELS: usize = 100;

/// An object of kind `K`, without managed fields and without content below [`LEVELS`].
#[derive(Debug, Clone)]
pub struct Readable<K>(pub K);

impl<'de, K: DeserializeOwned> Deserialize<'de> for Readable<K> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let object = Below(LEVELS).deserialize(deserializer)?;
        let object = serde_json::from_value(object);
        object.map(Self).map_err(D::Error::custom)
    }
}

impl<K: Resource> Resource for Readable<K> {
    type DynamicType = K::DynamicType;
    type Scope = K::Scope;

    fn kind(of: &K::DynamicType) -> Cow<'_, str> {
        K::kind(of)
    }

    fn group(of: &K::DynamicType) -> Cow<'_, str> {
        K::group(of)
    }

    fn version(of: &K::DynamicType) -> Cow<'_, str> {
        K::version(of)
    }

    fn api_version(of: &K::DynamicType) -> Cow<'_, str> {
        K::api_version(of)
    }

    fn plural(of: &K::DynamicType) -> Cow<'_, str> {
        K::plural(of)
    }

    fn metadata_api() -> bool {
        K::metadata_api()
    }

    fn meta(&self) -> &ObjectMeta {
        self.0.meta()
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        self.0.meta_mut()
    }
}

/// Returns the objects that the API server lists. Every list is read by this function.
///
/// # Errors
/// Returns the API server's refusal, or the reason why there is no answer.
pub async fn list<K>(api: &Api<Readable<K>>, of: &ListParams) -> kube::Result<ObjectList<K>>
where
    K: Clone + fmt::Debug + DeserializeOwned,
{
    #[expect(clippy::disallowed_methods, reason = "the only list")]
    let list = api.list(of).await?;
    let items = list.items.into_iter().map(|Readable(object)| object);
    Ok(ObjectList {
        types: list.types,
        metadata: list.metadata,
        items: items.collect(),
    })
}

/// Deserializes a value up to this number of levels.
#[derive(Clone, Copy)]
struct Below(usize);

impl<'de> DeserializeSeed<'de> for Below {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        match self.0 {
            0 => IgnoredAny::deserialize(deserializer).map(|_| Value::Null),
            _ => deserializer.deserialize_any(self),
        }
    }
}

impl<'de> Visitor<'de> for Below {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = items.next_element_seed(Self(self.0 - 1))? {
            list.push(item);
        }
        Ok(list.into())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Value, A::Error> {
        let mut object = Map::new();
        while let Some(key) = fields.next_key::<String>()? {
            // At this level, only `metadata` has a field of this name.
            let is_skipped = self.0 == LEVELS - 1 && key == "managedFields";
            let levels = if is_skipped { 0 } else { self.0 - 1 };
            let value = fields.next_value_seed(Self(levels))?;
            if !is_skipped {
                object.insert(key, value);
            }
        }
        Ok(object.into())
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Service;
    use kube::ResourceExt as _;
    use kube::core::{DynamicObject, ObjectList, WatchEvent};
    use serde_json::json;

    use super::*;

    /// Returns JSON with this many nested objects.
    fn nested(levels: usize) -> String {
        format!("{}0{}", r#"{"f":"#.repeat(levels), "}".repeat(levels))
    }

    #[test]
    fn odd_managed_fields_hide_no_object() {
        let deep = nested(100_000);
        for odd in [
            r#"{"time": "9999-12-31T00:00:00Z"}"#.to_owned(),
            format!(r#"{{"fieldsV1": {deep}}}"#),
        ] {
            let list = format!(
                r#"{{"metadata": {{}}, "items": [
                    {{"metadata": {{"name": "a", "managedFields": [{odd}]}}}},
                    {{"metadata": {{"name": "b", "labels": {{"x": "y"}}}},
                      "spec": {{"selector": {{"app": "b"}}, "ports": [{{"port": 80}}]}}}}
                ]}}"#
            );
            assert!(serde_json::from_str::<ObjectList<Service>>(&list).is_err());
            let read: ObjectList<Readable<Service>> = serde_json::from_str(&list).unwrap();
            let [a, b] = [0, 1].map(|at: usize| read.items[at].0.clone());
            assert_eq!(a.metadata.name.as_deref(), Some("a"));
            let plain = json!({
                "metadata": {"name": "b", "labels": {"x": "y"}},
                "spec": {"selector": {"app": "b"}, "ports": [{"port": 80}]},
            });
            assert_eq!(b, serde_json::from_value(plain).unwrap());
        }
    }

    #[test]
    fn deep_fields_are_read_in_part() {
        let event = format!(
            r#"{{"type": "ADDED", "object": {{
                "apiVersion": "x/v1", "kind": "X",
                "metadata": {{"name": "a", "managedFields": []}},
                "spec": {{"all": [-1, 2, 0.5, null, true, "x"], "deep": {}}}
            }}}}"#,
            nested(100_000)
        );
        assert!(serde_json::from_str::<WatchEvent<DynamicObject>>(&event).is_err());
        let read: WatchEvent<Readable<DynamicObject>> = serde_json::from_str(&event).unwrap();
        let WatchEvent::Added(Readable(object)) = read else {
            panic!("another event");
        };
        assert_eq!(
            (object.name_any().as_str(), object.managed_fields().len()),
            ("a", 0)
        );
        assert_eq!(object.types.unwrap().kind, "X");
        let spec = &object.data["spec"];
        assert_eq!(spec["all"], json!([-1, 2, 0.5, null, true, "x"]));
        assert_eq!(spec["deep"]["f"]["f"].as_object().unwrap().len(), 1);
    }
}
