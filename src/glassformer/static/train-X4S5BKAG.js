import{a,b,c}from"./chunk-7S4YZ6UV.js";import"./chunk-IMMLB2LE.js";import"./chunk-SVPYO5R6.js";import"./chunk-C6HXXOZG.js";import"./chunk-BPCI7NRO.js";export{c as Heads,b as Train,a as joined};
