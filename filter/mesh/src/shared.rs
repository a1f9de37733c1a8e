//! Records that all workers of a process share ([`headgate_strategies::shared`]).

pub(crate) use headgate_strategies::shared::*;

#[cfg(test)]
#[path = "../../strategies/tests/memory/layout.rs"]
mod layout;

#[cfg(test)]
mod tests {
    use super::layout::check;
    use crate::workflows::ProcessId;
    use crate::workflows::call_tree::Children;
    use crate::workflows::names::Ids;
    use crate::workflows::record::Record;

    #[test]
    fn layouts_are_those_of_their_schemas() {
        check::<ProcessId>();
        check::<Record>();
        check::<Ids>();
        check::<Children>();
    }
}
