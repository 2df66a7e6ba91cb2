//! A cart on a track that balances a pole: Barto, Sutton and Anderson (1983), with the constants of OpenAI Gym.

use loader::rand::{Rng, RngExt};

/// The position of the cart, its velocity, the angle of the pole, and its velocity.
pub(crate) type State = [f32; 4];

/// The longest episode, in steps.
pub(crate) const MAX_STEPS: u32 = 500;

/// One simulator. It needs a number of its own, as a port of a real simulator would.
#[derive(Debug)]
pub(crate) struct CartPole {
    pub(crate) id: usize,
    state: State,
}

impl CartPole {
    /// Starts simulator `id`.
    pub(crate) fn start(id: usize) -> Self {
        Self { id, state: [0.0; 4] }
    }

    /// Plays one episode, in which `policy` pushes the cart to the right if it returns true. Returns its number
    /// of steps.
    pub(crate) fn play(&mut self, rng: &mut impl Rng, policy: impl Fn(&State) -> bool) -> u32 {
        self.state = std::array::from_fn(|_| rng.random_range(-0.05..0.05));
        (1..=MAX_STEPS).find(|_| self.has_fallen_after(policy(&self.state))).unwrap_or(MAX_STEPS)
    }

    /// Moves by 0.02 s. True if the pole has fallen or the cart has left the track.
    fn has_fallen_after(&mut self, pushes_right: bool) -> bool {
        const GRAVITY: f32 = 9.8;
        const CART: f32 = 1.0;
        const POLE: f32 = 0.1;
        const HALF_LENGTH: f32 = 0.5;
        const SECONDS: f32 = 0.02;
        let [x, speed, angle, turning] = self.state;
        let force = if pushes_right { 10.0 } else { -10.0 };
        let (sin, cos) = angle.sin_cos();
        let pushed = (force + POLE * HALF_LENGTH * turning * turning * sin) / (CART + POLE);
        let falling =
            (GRAVITY * sin - cos * pushed) / (HALF_LENGTH * (4.0 / 3.0 - POLE * cos * cos / (CART + POLE)));
        let acceleration = pushed - POLE * HALF_LENGTH * falling * cos / (CART + POLE);
        self.state = [
            x + SECONDS * speed,
            speed + SECONDS * acceleration,
            angle + SECONDS * turning,
            turning + SECONDS * falling,
        ];
        self.state[0].abs() > 2.4 || self.state[2].abs() > 12.0_f32.to_radians()
    }
}
