//! Comparison of a wanted object with its observed state.

use serde_json::Value;

use crate::object::Object;

/// Whether `observed` needs no write, because the last apply had the same content and no applied
/// field has changed since. The annotation with the hash of the content is one of the fields, so an
/// apply that only removes fields is due too. Fields that other managers added are ignored.
pub fn unchanged(wanted: &Object, observed: &Value) -> bool {
    is_within(&wanted.value, observed)
}

/// Whether every field of `wanted` has its value in `observed`. Lists must have the same length,
/// except owner references, which other managers may extend.
fn is_within(wanted: &Value, observed: &Value) -> bool {
    match (wanted, observed) {
        (Value::Object(wanted), Value::Object(observed)) => wanted.iter().all(|(key, value)| {
            let found = observed.get(key);
            match (key.as_str(), value, found) {
                ("ownerReferences", Value::Array(all), Some(Value::Array(found))) => {
                    all.iter().all(|w| found.iter().any(|f| is_within(w, f)))
                }
                // The API server drops null fields.
                (_, Value::Null, None) => true,
                (_, value, Some(found)) => is_within(value, found),
                (_, _, None) => false,
            }
        }),
        (Value::Array(wanted), Value::Array(observed)) => {
            wanted.len() == observed.len()
                && wanted.iter().zip(observed).all(|(w, o)| is_within(w, o))
        }
        // The API server returns 1.0 as 1.
        (Value::Number(wanted), Value::Number(observed)) => {
            wanted == observed || wanted.as_f64() == observed.as_f64()
        }
        (wanted, observed) => wanted == observed,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn fields_that_others_add_do_not_count_as_differences() {
        let wanted = json!({"spec": {"a": 1.0, "b": [{"c": "d"}], "n": null}});
        let seen = json!({
            "spec": {"a": 1, "b": [{"c": "d", "default": true}], "priority": 3},
            "status": {},
        });
        assert!(is_within(&wanted, &seen));
        for other in [
            json!({"spec": {"a": 2, "b": [{"c": "d"}]}}),
            json!({"spec": {"a": 1, "b": []}}),
            json!({"spec": {"a": 1, "b": [{"c": "d"}, {}]}}),
            json!({"spec": {"a": 1}}),
            json!({}),
        ] {
            assert!(!is_within(&wanted, &other), "{other}");
        }
    }

    #[test]
    fn further_owners_are_no_difference() {
        let wanted = json!({"ownerReferences": [{"uid": "1"}]});
        assert!(is_within(
            &wanted,
            &json!({"ownerReferences": [{"uid": "0"}, {"uid": "1"}]})
        ));
        assert!(!is_within(
            &wanted,
            &json!({"ownerReferences": [{"uid": "0"}]})
        ));
    }
}
