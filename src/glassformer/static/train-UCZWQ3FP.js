import{a,b,c}from"./chunk-GJSX7FO7.js";import"./chunk-2O3NNA5A.js";import"./chunk-SVPYO5R6.js";import"./chunk-KQQLVGC4.js";import"./chunk-SKSVLVPQ.js";export{c as Heads,b as Train,a as joined};
