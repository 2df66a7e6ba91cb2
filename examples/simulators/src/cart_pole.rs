//! A cart on a track that balances a pole: Barto, Sutton and Anderson (1983), with the constants of OpenAI Gym.

use loader::rand::{Rng, RngExt};

/// Position of the cart (m), its velocity (m/s), angle of the pole (rad), and its angular velocity (rad/s).
pub(crate) type State = [f32; 4];

/// Maximum number of steps in an episode.
pub(crate) const MAX_STEPS: u32 = 500;

/// A simulator.
#[derive(Debug, Default)]
pub(crate) struct CartPole {
    state: State,
}

impl CartPole {
    /// Plays one episode, in which `policy` pushes the cart to the right if it returns true. Returns its number
    /// of steps.
    pub(crate) fn play(&mut self, rng: &mut impl Rng, policy: impl Fn(&State) -> bool) -> u32 {
        self.state = std::array::from_fn(|_| rng.random_range(-0.05..0.05));
        (1..=MAX_STEPS).find(|_| self.step(policy(&self.state))).unwrap_or(MAX_STEPS)
    }

    /// Advances by 0.02 s. Returns true if the episode is over: the pole has fallen, or the cart has left the
    /// track.
    fn step(&mut self, pushes_right: bool) -> bool {
        const GRAVITY: f32 = 9.8; // m/s^2
        const CART_MASS: f32 = 1.0; // kg
        const POLE_MASS: f32 = 0.1; // kg
        const HALF_LENGTH: f32 = 0.5; // m
        const SECONDS: f32 = 0.02;
        let [position, velocity, angle, angular_velocity] = self.state;
        let force = if pushes_right { 10.0 } else { -10.0 }; // N
        let mass = CART_MASS + POLE_MASS;
        let (sin, cos) = angle.sin_cos();
        let pushed = (force + POLE_MASS * HALF_LENGTH * angular_velocity * angular_velocity * sin) / mass;
        let angular_acceleration =
            (GRAVITY * sin - cos * pushed) / (HALF_LENGTH * (4.0 / 3.0 - POLE_MASS * cos * cos / mass));
        let acceleration = pushed - POLE_MASS * HALF_LENGTH * angular_acceleration * cos / mass;
        self.state = [
            position + SECONDS * velocity,
            velocity + SECONDS * acceleration,
            angle + SECONDS * angular_velocity,
            angular_velocity + SECONDS * angular_acceleration,
        ];
        self.state[0].abs() > 2.4 || self.state[2].abs() > 12.0_f32.to_radians()
    }
}
