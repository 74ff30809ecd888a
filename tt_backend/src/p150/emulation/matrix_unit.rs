//! How many digits the matrix unit and the packer behind it leave of a number.
//!
//! Sources: `elwadd` and `mvmul` of Tenstorrent's simulator, ttsim 1.10.0, and ELWADD.md and MVMUL.md of
//! tt-isa-documentation. [`add`] is theirs to the bit. Of `mvmul` only the cut of the left operand is emulated: that it
//! lines up groups of eight products and rounds them to 12 bits is not. In the first convolution a group has one product,
//! because TT-NN fills its one channel up to eight, and nothing is lost; in the others it costs a correlation of 0.999999.

use tt_metal_sys::{Compute, Fidelity};

/// What the matrix unit sees of a single: 11 significant bits, the others cut off.
pub(super) fn tf32(value: f32) -> f32 {
    f32::from_bits(value.to_bits() & !0x1fff)
}

/// What the multiplier takes of the left operand: in up to two passes 7 significant bits, the others cut off. Of the right one
/// it takes all 8 of bf16 from two passes on.
pub(super) fn left_operand(compute: Compute, values: &mut [f32]) {
    match compute.fidelity {
        Fidelity::LoFi => panic!("one pass is not emulated: it cuts the right operand too"),
        Fidelity::HiFi2 => values.iter_mut().for_each(|value| *value = f32::from_bits(value.to_bits() & !0x1_ffff)),
        Fidelity::HiFi3 | Fidelity::HiFi4 => {}
    }
}

/// The sum of two numbers: both cut to 11 bits, and the smaller one rounded to the last place of the larger one, ties away
/// from zero.
pub(super) fn add(a: f32, b: f32) -> f32 {
    let (a, b) = (tf32(a), tf32(b));
    let (large, small) = if a.abs() >= b.abs() { (a, b) } else { (b, a) };
    if large == 0.0 || !(a + b).is_finite() {
        return a + b;
    }
    // The power of two that the larger one begins with, ten places down.
    let place = f32::from_bits(large.to_bits() & 0x7f80_0000) / 1024.0;
    let places = (small.abs() / place + 0.5) as i32;
    large + (places as f32 * place).copysign(small)
}

/// A bf16 number as the packer makes it of a single: ties away from zero.
pub(super) fn packed(value: f32) -> f32 {
    if value.is_finite() { f32::from_bits(value.to_bits().wrapping_add(0x8000) & !0xffff) } else { value }
}

#[test]
fn a_sum_has_the_places_of_its_larger_part() {
    let place = 1.0 / 1024.0;
    for (a, b, sum) in [
        (1.0, 0.5 * place, 1.0 + place),
        (1.0, 0.498 * place, 1.0),
        (1.0, 2.5 * place, 1.0 + 3.0 * place),
        (1.0, -2.5 * place, 1.0 - 3.0 * place),
        (-1.0, 0.5 * place, -1.0 + place),
        // A tie by the larger part's places, though the sum's are half as wide.
        (1.0, -0.5 * place, 1.0 - place),
        // Cut, not rounded, before that.
        (1.0 + 0.999 * place, 0.0, 1.0),
        (-1.0 - 0.999 * place, 0.0, -1.0),
        (1.0 + 0.75 * place, 0.75 * place, 1.0 + place),
        (2.0 - place, place, 2.0),
        (3.0, 5.0 * place, 3.0 + 6.0 * place),
        (1.0, -1.0, 0.0),
        (0.0, 1e-20, tf32(1e-20)),
        (0.0, 0.0, 0.0),
        (f32::INFINITY, 1.0, f32::INFINITY),
    ] {
        assert_eq!(add(a, b), sum, "{a} + {b}");
        assert_eq!(add(b, a), sum, "{b} + {a}");
    }
    assert!(add(f32::NAN, 1.0).is_nan());
}
