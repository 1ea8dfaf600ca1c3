// The room around a timeline's plot, in pixels; the strip under it is to line up with it.

export const LEFT = 62;
export const RIGHT = 8;
