//! A scenario is an experiment as data. The runner turns the scenario into a report.
//!
//! A case starts from the parameters of the scenario's model. The case's series changes them by a
//! [merge patch](merge) (RFC 7396), and its point of the sweep sets the swept fields.

use std::collections::BTreeMap;

use headgate_simulator::report::{Report, Subject, words};
use headgate_simulator::{Progress, SimulationError, Size};
use serde::Deserialize;
use serde_json::Value;

use crate::claim::ClaimEntry;
use crate::measured::Measured;
use crate::model::{Amount, Model};
use crate::show::{self, Fields, FigureEntry, Found, Results, TableEntry};

const FILES: [&str; 5] = [
    include_str!("../data/bouncer.yaml"),
    include_str!("../data/seda.yaml"),
    include_str!("../data/chronos.yaml"),
    include_str!("../data/wisp.yaml"),
    include_str!("../data/aequitas.yaml"),
];

/// The parts of the papers that no scenario covers, with their contents.
pub const MISSING: [(&str, &str); 2] = [
    ("Chronos, §3.1", "memory of the controller"),
    ("Wisp, Figures 1 and 2", "measurements of Bing"),
];

/// The reason why a scenario has no report.
#[derive(Debug, thiserror::Error)]
pub enum ScenarioError {
    /// The data is invalid. A test reads all data of this crate.
    #[error("the scenario's data: {0}")]
    Data(String),
    /// A run failed.
    #[error(transparent)]
    Simulation(#[from] SimulationError),
}

/// An experiment that can be run by its name.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Scenario {
    name: String,
    title: String,
    /// The number of requests of a run at the paper's size, from which smaller sizes are scaled.
    requests: u64,
    /// The smallest factor by which the paper's times are scaled.
    #[serde(default = "tenth")]
    least: f64,
    /// The number of runs of each case in the paper.
    #[serde(default = "one")]
    seeds: u32,
    /// The size at which the claims are tested.
    #[serde(default)]
    check: Size,
    /// The names of the fields that identify a row.
    fields: Fields,
    /// The entries of the setup, with their names and texts.
    #[serde(default)]
    setup: Vec<(String, String)>,
    model: Value,
    series: Vec<Series>,
    cross: Option<Cross>,
    sweep: Option<Sweep>,
    tables: Vec<TableEntry>,
    #[serde(default)]
    figures: Vec<FigureEntry>,
    #[serde(default)]
    claims: Vec<ClaimEntry>,
    /// The notes. When a file is read, the names of the notes in the file are replaced by their
    /// texts.
    #[serde(default)]
    notes: Vec<String>,
}

const fn tenth() -> f64 {
    0.1
}

const fn one() -> u32 {
    1
}

/// A strategy, or another compared variant.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct Series {
    name: String,
    /// A merge patch of the model.
    #[serde(default)]
    with: Value,
    /// The points of this series, in place of the sweep's.
    values: Option<Vec<f64>>,
    /// The field that this series sweeps, in place of the sweep's.
    at: Option<String>,
}

/// A second set of variants. Each series runs with each of these variants.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct Cross {
    /// The field of the rows with the variant's name.
    field: String,
    each: Vec<Series>,
}

/// A sweep over the values of a field of the model.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct Sweep {
    /// The field, as an RFC 6901 pointer into the model.
    at: String,
    /// The other fields that change with the swept field, as offsets from the swept value.
    #[serde(default)]
    with: Vec<(String, f64)>,
    values: Vec<f64>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct DataFile {
    /// The YAML anchors that scenarios share.
    #[serde(default, rename = "shared")]
    _shared: Value,
    notes: BTreeMap<String, String>,
    scenarios: Vec<Scenario>,
}

/// One combination of variants, which runs once per seed.
struct Case {
    series: String,
    labels: Vec<(String, String)>,
    x: Option<f64>,
    model: Model,
}

/// Returns all scenarios, in the order of the papers.
///
/// # Errors
/// [`ScenarioError::Data`].
pub fn all() -> Result<Vec<Scenario>, ScenarioError> {
    let mut all = Vec::new();
    for text in FILES {
        let file: DataFile =
            serde_saphyr::from_str(text).map_err(|e| ScenarioError::Data(e.to_string()))?;
        for mut scenario in file.scenarios {
            for note in &mut scenario.notes {
                let text = file.notes.get(note);
                let text = text.ok_or_else(|| ScenarioError::Data(format!("no note {note:?}")))?;
                note.clone_from(text);
            }
            all.push(scenario);
        }
    }
    Ok(all)
}

/// Returns the scenario `name`, or `None` if there is none.
///
/// # Errors
/// [`ScenarioError::Data`].
pub fn by_name(name: &str) -> Result<Option<Scenario>, ScenarioError> {
    Ok(all()?.into_iter().find(|scenario| scenario.name == name))
}

impl Scenario {
    /// Returns the scenario's name on the command line.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the title in one line, with the paper and the caption.
    pub fn title(&self) -> &str {
        &self.title
    }

    /// Returns the size at which all judged results are as expected.
    pub fn check_size(&self) -> Size {
        self.check
    }

    fn seeds(&self, size: &Size) -> u32 {
        size.seeds.unwrap_or(self.seeds).max(1)
    }

    fn amount(&self, size: &Size) -> Amount {
        let requests = size.requests.unwrap_or(self.requests);
        let part = requests as f64 / self.requests as f64;
        Amount {
            requests,
            part: part.clamp(self.least, 1.0),
        }
    }

    fn cases(&self) -> Result<Vec<Case>, ScenarioError> {
        let mut cases = Vec::new();
        let fields = &self.fields;
        for series in &self.series {
            let mut model = self.model.clone();
            merge(&mut model, &series.with);
            let label = (fields.series.clone(), series.name.clone());
            let Some(cross) = &self.cross else {
                self.places(series, &series.name, &[label], &model, &mut cases)?;
                continue;
            };
            for each in &cross.each {
                let mut model = model.clone();
                merge(&mut model, &each.with);
                let labels = [label.clone(), (cross.field.clone(), each.name.clone())];
                let name = format!("{}, {}", series.name, each.name);
                self.places(series, &name, &labels, &model, &mut cases)?;
            }
        }
        Ok(cases)
    }

    fn places(
        &self,
        series: &Series,
        name: &str,
        labels: &[(String, String)],
        model: &Value,
        cases: &mut Vec<Case>,
    ) -> Result<(), ScenarioError> {
        let wrong = |error: &dyn std::fmt::Display| {
            ScenarioError::Data(format!("{}, {name}: {error}", self.name))
        };
        let values = series
            .values
            .as_ref()
            .or(self.sweep.as_ref().map(|sweep| &sweep.values));
        let at = series
            .at
            .as_ref()
            .or(self.sweep.as_ref().map(|sweep| &sweep.at));
        let places = match values {
            None => vec![None],
            Some(values) => values.iter().copied().map(Some).collect(),
        };
        for x in places {
            let mut model = model.clone();
            if let (Some(x), Some(at)) = (x, at) {
                let others = self.sweep.iter().flat_map(|sweep| &sweep.with);
                let others = others.map(|(at, above)| (at, x + above));
                for (at, x) in std::iter::once((at, x)).chain(others) {
                    let field = model
                        .pointer_mut(at)
                        .ok_or_else(|| wrong(&format!("no field {at}")))?;
                    *field = if x.fract() == 0.0 {
                        Value::from(x as u64)
                    } else {
                        Value::from(x)
                    };
                }
            }
            cases.push(Case {
                series: name.to_owned(),
                labels: labels.to_vec(),
                x,
                model: serde_json::from_value(model).map_err(|e| wrong(&e))?,
            });
        }
        Ok(())
    }

    /// Runs the scenario. The report depends only on `size`, not on its number of threads.
    ///
    /// # Errors
    /// [`ScenarioError`].
    pub fn run(&self, size: &Size, progress: &dyn Progress) -> Result<Report, ScenarioError> {
        let (amount, seeds) = (self.amount(size), self.seeds(size));
        let found = self.measure(size, progress)?;
        let mut report = Report::new(Subject::Scenario(self.name.clone()), self.title.as_str());
        report.setup.clone_from(&self.setup);
        if amount.part < 1.0 {
            report.setup("times", format!("{:.2} of the paper's", amount.part));
        }
        report.setup("runs", words::runs(seeds, None, size.first_seed()));
        for found in &found {
            for (name, text) in &found.measured.words {
                let line = (name.clone(), text.clone());
                if !report.setup.contains(&line) {
                    report.setup.push(line);
                }
            }
        }
        let results = Results { found: &found };
        report.tables = self
            .tables
            .iter()
            .map(|table| show::table(table, &results))
            .collect();
        report.figures = self
            .figures
            .iter()
            .filter_map(|figure| show::figure(figure, &self.tables, &results))
            .collect();
        report.claims = self
            .claims
            .iter()
            .map(|claim| claim.judge(&results))
            .collect();
        report.notes.clone_from(&self.notes);
        report.rows = show::rows(&self.fields, &self.tables, &results);
        Ok(report)
    }

    fn measure(&self, size: &Size, progress: &dyn Progress) -> Result<Vec<Found>, ScenarioError> {
        let (amount, cases) = (self.amount(size), self.cases()?);
        let runs = cases.len() as u64 * u64::from(self.seeds(size));
        progress.expect(amount.requests * runs);
        let runs = size.runs(self.seeds, cases.len(), |case, seed| {
            let measured = cases[case].model.run(&amount, seed)?;
            progress.done(amount.requests);
            Ok(measured)
        })?;
        let found = |(case, runs): (Case, Vec<Measured>)| Found {
            series: case.series,
            labels: case.labels,
            x: case.x,
            measured: Measured::average(runs),
        };
        Ok(cases.into_iter().zip(runs).map(found).collect())
    }
}

/// Applies a merge patch to `target`. Mappings are merged field by field. Other values are
/// replaced. A field whose new value is null is removed.
fn merge(target: &mut Value, patch: &Value) {
    match (target, patch) {
        (_, Value::Null) => {}
        (Value::Object(target), Value::Object(patch)) => {
            for (name, value) in patch {
                match (value, target.get_mut(name)) {
                    (Value::Null, _) => _ = target.remove(name),
                    // A choice with another type has other settings, so it replaces the old choice.
                    (Value::Object(new), Some(Value::Object(old)))
                        if new
                            .get("type")
                            .is_none_or(|kind| old.get("type") == Some(kind)) =>
                    {
                        merge(&mut target[name], value);
                    }
                    _ => _ = target.insert(name.clone(), value.clone()),
                }
            }
        }
        (target, patch) => target.clone_from(patch),
    }
}

#[cfg(test)]
mod tests;
