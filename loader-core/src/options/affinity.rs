//! The option `worker_affinity`.

use std::{fmt, str::FromStr};

use loader_ipc::cpu_set::CpuSet;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use super::info::{OptionKind, ParseOptionError};

/// To which CPUs each worker is bound; [`Inherit`](Self::Inherit) by default.
///
/// The loader reads the machine's NUMA nodes and physical cores, and the CPUs that the process may use, in
/// [`build`](crate::Builder::build). A worker is bound before its program begins, so all of its threads are.
/// Main's own affinity never changes.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum WorkerAffinity {
    /// Workers have the affinity of the thread that starts them.
    #[default]
    Inherit,
    /// Workers may use all CPUs of main's control group (the machine, if there is none), also those that main
    /// is not bound to. If a launcher tells the number of this process among its processes on this machine,
    /// the CPUs are divided among these processes, whole physical cores in the order of NUMA nodes, and the
    /// workers of each may use its part. If there are as many GPUs as processes, process `i` gets CPUs near
    /// GPU `i` where this gives all processes equally many.
    Share,
    /// Each worker is bound to one CPU. Worker 0 gets one of the first NUMA node, worker 1 one of the second,
    /// and so on; of a node, physical cores come before their second hardware threads. The CPUs are those of
    /// [`Share`](Self::Share) if a launcher tells the number of this process on this machine, and otherwise
    /// those of main's own affinity. If there are more workers than CPUs, worker `n` has the same CPU as
    /// worker 0.
    Spread,
    /// As [`Spread`](Self::Spread), but a NUMA node is used up before the next one.
    Pack,
    /// Worker `i` may use the set `i` modulo the number of sets.
    Sets(Vec<CpuSet>),
}

impl WorkerAffinity {
    fn name(&self) -> Option<&'static str> {
        match self {
            Self::Inherit => Some("inherit"),
            Self::Share => Some("share"),
            Self::Spread => Some("spread"),
            Self::Pack => Some("pack"),
            Self::Sets(_) => None,
        }
    }

    fn of_name(name: &str) -> Option<Self> {
        let named = [Self::Inherit, Self::Share, Self::Spread, Self::Pack];
        named.into_iter().find(|affinity| affinity.name() == Some(name))
    }
}

impl FromStr for WorkerAffinity {
    type Err = ParseOptionError;

    fn from_str(text: &str) -> Result<Self, ParseOptionError> {
        let sets = || text.split_whitespace().map(|set| set.parse().ok()).collect::<Option<Vec<_>>>();
        let parsed = Self::of_name(text).or_else(|| sets().filter(|sets| !sets.is_empty()).map(Self::Sets));
        parsed.ok_or_else(|| ParseOptionError::new(text, OptionKind::Affinity))
    }
}

impl fmt::Display for WorkerAffinity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sets(sets) => {
                let sets: Vec<_> = sets.iter().map(ToString::to_string).collect();
                f.pad(&sets.join(" "))
            }
            named => f.pad(named.name().unwrap_or_default()),
        }
    }
}

impl Serialize for WorkerAffinity {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Sets(sets) => sets.serialize(serializer),
            named => serializer.serialize_str(named.name().unwrap_or_default()),
        }
    }
}

impl<'de> Deserialize<'de> for WorkerAffinity {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct NameOrSets;
        impl<'de> de::Visitor<'de> for NameOrSets {
            type Value = WorkerAffinity;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(
                    "\"inherit\", \"share\", \"spread\", \"pack\" or sets of CPUs such as [\"0-3\", \"4-7\"]",
                )
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<WorkerAffinity, E> {
                let named = WorkerAffinity::of_name(text);
                named.ok_or_else(|| E::invalid_value(de::Unexpected::Str(text), &self))
            }

            fn visit_seq<A: de::SeqAccess<'de>>(self, mut list: A) -> Result<WorkerAffinity, A::Error> {
                let mut sets = Vec::new();
                while let Some(set) = list.next_element()? {
                    sets.push(set);
                }
                Ok(WorkerAffinity::Sets(sets))
            }
        }
        deserializer.deserialize_any(NameOrSets)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_affinity_is_a_name_or_sets_of_cpus() {
        let sets = WorkerAffinity::Sets(vec!["0-3".parse().unwrap(), "4,6".parse().unwrap()]);
        for (text, expected) in [
            ("inherit", WorkerAffinity::Inherit),
            ("share", WorkerAffinity::Share),
            ("spread", WorkerAffinity::Spread),
            ("pack", WorkerAffinity::Pack),
            ("0-3 4,6", sets.clone()),
        ] {
            assert_eq!(text.parse(), Ok(expected.clone()));
            assert_eq!(expected.to_string(), text);
        }
        for text in ["", " ", "Share", "0-3;4-7", "0-3 x", "2000"] {
            assert!(text.parse::<WorkerAffinity>().is_err(), "{text}");
        }
        let json = serde_json::to_string(&sets).unwrap();
        assert_eq!(json, r#"["0-3","4,6"]"#);
        assert_eq!(serde_json::from_str::<WorkerAffinity>(&json).unwrap(), sets);
        let wrong = serde_json::from_str::<WorkerAffinity>(r#"["0-x"]"#).unwrap_err().to_string();
        assert!(wrong.starts_with("`0-x` is not a set of CPUs, such as 0-3,8, with numbers from 0 to 1023"));
        let wrong = serde_json::from_str::<WorkerAffinity>(r#""0-3""#).unwrap_err().to_string();
        assert!(
            wrong.contains(r#"expected "inherit", "share", "spread", "pack" or sets of CPUs"#),
            "{wrong}"
        );
    }
}
