//! Lines of an access log in JSON (`json_format`), whose names users choose: Istio's are taken, those of
//! Envoy's command operators, and what is near. Names differ in case and punctuation only, so they are
//! compared without; what isn't known is taken for a request header.

use serde_json::{Map, Value};

use super::fields::{Fields, millis, present};
use super::{Passed, timestamp};

/// Reads a line.
pub(super) fn fields(line: &str) -> Result<Fields, Passed> {
    let Ok(Value::Object(object)) = serde_json::from_str(line) else {
        return Err(Passed::Unknown);
    };
    let mut fields = Fields::default();
    read(&object, &mut fields);
    Ok(fields)
}

fn read(object: &Map<String, Value>, fields: &mut Fields) {
    for (name, value) in object {
        if let Value::Object(headers) = value {
            // Some put request headers into an object of their own.
            if plain(name).contains("header") && !plain(name).contains("response") {
                read(headers, fields);
            }
            continue;
        }
        let Some(text) = text(value) else { continue };
        field(name, &text, fields);
    }
}

fn field(name: &str, text: &str, fields: &mut Fields) {
    match plain(name).as_str() {
        "starttime" | "timestamp" | "time" => fields.start_ns = timestamp::nanos(text),
        "duration" | "durationms" | "requestduration" | "requestdurationms" => {
            fields.duration_ms = millis(text);
        }
        "upstreamservicetime" | "upstreamservicetimems" | "xenvoyupstreamservicetime" => {
            fields.upstream_ms = millis(text);
        }
        "upstreamhost" => fields.reached_upstream = Some(present(text).is_some()),
        // Tells less than the host, as there are answers of the upstream that Envoy then replaced.
        "responsecodedetails" => {
            let via_upstream = text == "via_upstream";
            fields.reached_upstream.get_or_insert(via_upstream);
        }
        "method" | "requestmethod" => fields.request.method = present(text).map(str::to_owned),
        // As the client sent it, which is what the filter sees before the router rewrites it.
        "xenvoyoriginalpath" => fields.request.path = present(text).map(str::to_owned),
        "path" | "requestpath" | "urlpath" => {
            let path = present(text).map(str::to_owned);
            fields.request.path = fields.request.path.take().or(path);
        }
        "routename" | "route" => fields.request.route = present(text).map(str::to_owned),
        _ => {
            if let Some(value) = present(text) {
                let name = name.trim_start_matches(':').to_ascii_lowercase();
                let name = name.replace('_', "-");
                fields.request.headers.push((name, value.to_owned()));
            }
        }
    }
}

/// Lower case letters and digits only.
fn plain(name: &str) -> String {
    let kept = name.chars().filter(char::is_ascii_alphanumeric);
    kept.map(|c| c.to_ascii_lowercase()).collect()
}

fn text(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        // Envoy writes null where there is nothing; that there is no upstream host says something.
        Value::Null => Some(String::new()),
        Value::Bool(_) | Value::Array(_) | Value::Object(_) => None,
    }
}
