//! The loader's options on the command line, made from the list of options in loader-core.

use std::iter;

use clap::{Arg, ArgMatches, Args, Command, FromArgMatches, builder::PossibleValuesParser, error::ErrorKind};
use loader_core::{LoaderOptions, OptionInfo, OptionKind};

/// The options that determine the indices of each batch. `loader plan` has only these.
const ORDER: [&str; 9] =
    ["batch_size", "shuffle", "seed", "order", "rank", "world_size", "group_size", "launcher", "drop_last"];

/// The loader's options on the command line: all of them, or only those in [`ORDER`].
#[derive(Debug, Default)]
pub(crate) struct LoaderArguments<const ONLY_ORDER: bool> {
    pub(crate) options: LoaderOptions,
}

impl<const ONLY_ORDER: bool> LoaderArguments<ONLY_ORDER> {
    fn list() -> impl Iterator<Item = &'static OptionInfo> {
        let listed = |option: &&OptionInfo| !ONLY_ORDER || ORDER.contains(&option.name());
        OptionInfo::ALL.iter().filter(listed)
    }
}

impl<const ONLY_ORDER: bool> Args for LoaderArguments<ONLY_ORDER> {
    fn augment_args(command: Command) -> Command {
        command.args(Self::list().map(argument))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl<const ONLY_ORDER: bool> FromArgMatches for LoaderArguments<ONLY_ORDER> {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut arguments = Self::default();
        arguments.update_from_arg_matches(matches)?;
        Ok(arguments)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        for option in Self::list() {
            if let Some(text) = matches.get_one::<String>(option.name()) {
                option
                    .set(&mut self.options, text)
                    .map_err(|error| clap::Error::raw(ErrorKind::ValueValidation, error))?;
            }
        }
        Ok(())
    }
}

fn argument(option: &'static OptionInfo) -> Arg {
    let bounds = Some(option.bounds()).filter(|bounds| !bounds.is_empty());
    let needs = option.needs_workers().then_some("needs workers");
    let help: Vec<_> = iter::once(option.help()).chain(bounds).chain(needs).collect();
    let default = option.default_text().map(|text| format!(" [default: {text}]")).unwrap_or_default();
    let argument = Arg::new(option.name())
        .long(option.flag())
        .value_name(option.kind().value_name())
        .help(format!("{}{default}", help.join("; ")));
    match option.kind() {
        OptionKind::Switch => argument
            .num_args(0..=1)
            .default_missing_value("true")
            .require_equals(true)
            .value_parser(PossibleValuesParser::new(["true", "false"])),
        _ => argument.value_parser(move |text: &str| {
            option.set(&mut LoaderOptions::default(), text).map(|()| text.to_owned())
        }),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;
    use crate::arguments::Arguments;

    fn parse<const ONLY_ORDER: bool>(argument: &str) -> Result<LoaderOptions, clap::Error> {
        let command = LoaderArguments::<ONLY_ORDER>::augment_args(Command::new("loader"));
        let matches = command.try_get_matches_from(["loader", argument])?;
        Ok(LoaderArguments::<ONLY_ORDER>::from_arg_matches(&matches)?.options)
    }

    #[test]
    fn every_option_is_on_the_command_line() {
        for option in OptionInfo::ALL {
            let text = match option.kind() {
                OptionKind::Switch => "true",
                OptionKind::Seconds => "250 ms",
                OptionKind::Bytes => "2 GiB",
                OptionKind::NumWorkers => "auto:1-8",
                OptionKind::NumberOrAuto => "auto",
                OptionKind::Affinity => "0-3 4-7",
                OptionKind::Address => "127.0.0.1:9100",
                OptionKind::Choice(names) => names[1],
                _ => "20",
            };
            let mut expected = LoaderOptions::default();
            option.set(&mut expected, text).unwrap();
            let argument = format!("--{}={text}", option.flag());
            assert_eq!(parse::<false>(&argument).unwrap(), expected);
            assert_eq!(parse::<true>(&argument).is_ok(), ORDER.contains(&option.name()), "{argument}");

            if option.kind() == OptionKind::Path {
                continue; // Any text is a path.
            }
            let message = parse::<false>(&format!("--{}=many", option.flag())).unwrap_err().to_string();
            assert!(message.contains("invalid value 'many' for '--"), "{message}");
        }
        assert_eq!(parse::<false>("--in-order=false").unwrap(), LoaderOptions::default().in_order(false));
        assert_eq!(parse::<false>("--hedge").unwrap(), LoaderOptions::default().hedge(true));
    }

    #[test]
    fn the_help_names_the_defaults() {
        let command = Arguments::command();
        let run = command.find_subcommand("run").unwrap();
        for option in LoaderArguments::<false>::list() {
            let argument = run.get_arguments().find(|argument| argument.get_id() == option.name()).unwrap();
            let help = argument.get_help().unwrap().to_string();
            let found = help.split_once(" [default: ").map(|(_, default)| default.trim_end_matches(']'));
            assert_eq!(found, option.default_text().as_deref(), "{}: {help}", option.name());
        }
        let warn_after = run.get_arguments().find(|argument| argument.get_id() == "warn_after").unwrap();
        assert!(
            warn_after
                .get_help()
                .unwrap()
                .to_string()
                .ends_with("; 0 or more; 0 turns the warning off [default: 30]")
        );
    }
}
